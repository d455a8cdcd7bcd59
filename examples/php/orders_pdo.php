<?php
// Enqueue, stream and acknowledge with PDO: php orders_pdo.php HOST PORT USER PASSWORD DATABASE

[, $host, $port, $user, $password, $database] = $argv;

// mysqlnd.net_read_timeout is one day, counted from row to row; an idle stream is silent.
ini_set('mysqlnd.net_read_timeout', '31536000');

// Emulated prepares, PDO's default, write arguments into the text; the server runs native ones.
$connect = fn (array $options) => new PDO("mysql:host=$host;port=$port;dbname=$database", $user, $password, $options);
$native = $connect([PDO::ATTR_EMULATE_PREPARES => false]);
$emulated = $connect([PDO::ATTR_EMULATE_PREPARES => true]);
// A stream keeps its connection busy. Unbuffered, it returns each row as it comes; the default
// waits for the end of the result.
$streaming = $connect([PDO::MYSQL_ATTR_USE_BUFFERED_QUERY => false]);

function enqueue(PDO $db, string ...$items): void
{
    $insert = $db->prepare('INSERT INTO orders (item) VALUES (?)');
    foreach ($items as $item) {
        $insert->execute([$item]);
    }
}

function acknowledge(PDO $db, int $order, string $how): void
{
    $ack = $db->prepare('ACK FROM orders WHERE id = ?');
    $ack->execute([$order]);
    echo "acknowledged $order, $how: {$ack->rowCount()}\n";
}

function poll(PDO $db, int $limit, int $seconds): array
{
    // Bound with their type: execute([...]) sends text, an emulated prepare quotes it, and LIMIT
    // '1' is an error.
    $poll = $db->prepare('STREAM id, item FROM orders LIMIT ? WAIT ?');
    $poll->bindValue(1, $limit, PDO::PARAM_INT);
    $poll->bindValue(2, $seconds, PDO::PARAM_INT);
    $poll->execute();
    return $poll->fetchAll(PDO::FETCH_KEY_PAIR);
}

// Enqueueing is an INSERT in a transaction of your own.
$native->beginTransaction();
enqueue($native, 'tea', 'bread');
$native->commit();
echo "enqueued tea, bread\n";

$native->beginTransaction();
enqueue($native, 'milk');
$native->rollBack();
echo "rolled back milk\n";

// Closing it reads the rest of the result, so LIMIT gives the result an end.
$first = null;
foreach ($streaming->query('STREAM id, item FROM orders LIMIT 3') as ['id' => $order, 'item' => $item]) {
    echo "received $order $item\n";
    if ($item === 'bread') {
        acknowledge($native, $order, 'native prepare');
        enqueue($native, 'jam'); // reaches the open stream at once
        echo "enqueued jam\n";
    } else {
        acknowledge($emulated, $order, 'emulated prepare');
    }
    $first ??= $order;
}
$streaming = null;

acknowledge($native, $first, 'again');

try {
    $native->query('STREAM * FROM customers');
} catch (PDOException $error) {
    [, $number, $text] = $error->errorInfo;
    echo "refused $number: $text\n";
}

// A long poll is an ordinary result. The work and its acknowledgement are one transaction.
// Commit work only if its ACK, with AND epoch = n, affected the message: docs/recipes.md shows why.
enqueue($native, 'salt');
echo "enqueued salt\n";
$native->beginTransaction();
foreach (poll($native, 1, 20) as $order => $item) {
    echo "received $order $item\n";
    acknowledge($native, $order, 'in the transaction');
}
$native->commit();

if (poll($emulated, 1, 1) === []) {
    echo "nothing came\n";
}
