<?php
// Enqueue, stream and acknowledge with mysqli:
// php orders_mysqli.php HOST PORT USER PASSWORD DATABASE

[, $host, $port, $user, $password, $database] = $argv;

// mysqlnd.net_read_timeout is one day, counted from row to row; an idle stream is silent.
ini_set('mysqlnd.net_read_timeout', '31536000');
mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT); // errors are exceptions

// A stream keeps its connection busy, so everything else uses another one.
$streaming = new mysqli($host, $user, $password, $database, (int) $port);
$working = new mysqli($host, $user, $password, $database, (int) $port);

function enqueue(mysqli $db, string ...$items): void
{
    foreach ($items as $item) {
        $db->execute_query('INSERT INTO orders (item) VALUES (?)', [$item]);
    }
}

function acknowledge_as_text(mysqli $db, int $order, string $how): void
{
    $db->query("ACK FROM orders WHERE id = $order");
    echo "acknowledged $order, $how: $db->affected_rows\n";
}

function acknowledge_prepared(mysqli $db, int $order, string $how): void
{
    $db->execute_query('ACK FROM orders WHERE id = ?', [$order]);
    echo "acknowledged $order, $how: $db->affected_rows\n";
}

// Enqueueing is an INSERT in a transaction of your own.
$working->begin_transaction();
enqueue($working, 'tea', 'bread');
$working->commit();
echo "enqueued tea, bread\n";

$working->begin_transaction();
enqueue($working, 'milk');
$working->rollback();
echo "rolled back milk\n";

// MYSQLI_USE_RESULT returns each row as it comes; the default waits for the end of the result.
// Freeing it reads the rest of the result, so LIMIT gives the result an end.
$first = null;
foreach ($streaming->query('STREAM id, item FROM orders LIMIT 3', MYSQLI_USE_RESULT) as ['id' => $order, 'item' => $item]) {
    echo "received $order $item\n";
    if ($item === 'bread') {
        acknowledge_prepared($working, (int) $order, 'prepared');
        enqueue($working, 'jam'); // reaches the open stream at once
        echo "enqueued jam\n";
    } else {
        acknowledge_as_text($working, (int) $order, 'text');
    }
    $first ??= (int) $order;
}
$streaming->close();

acknowledge_prepared($working, $first, 'again');

try {
    $working->query('STREAM * FROM customers');
} catch (mysqli_sql_exception $error) {
    echo "refused {$error->getCode()}: {$error->getMessage()}\n";
}

// A long poll is an ordinary result. The work and its acknowledgement are one transaction.
// Commit work only if its ACK, with AND epoch = n, affected the message: docs/recipes.md shows why.
enqueue($working, 'salt');
echo "enqueued salt\n";
$working->begin_transaction();
$poll = 'STREAM id, item FROM orders LIMIT ? WAIT ?';
foreach ($working->execute_query($poll, [1, 20]) as ['id' => $order, 'item' => $item]) {
    echo "received $order $item\n";
    acknowledge_prepared($working, $order, 'in the transaction');
}
$working->commit();

if ($working->execute_query($poll, [1, 0.5])->num_rows === 0) {
    echo "nothing came\n";
}
$working->close();
