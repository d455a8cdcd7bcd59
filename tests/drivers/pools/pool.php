<?php
// A web request in PHP, through mysqli or PDO, with a connection of its own or a persistent one. It answers with what
// the statement returns: the id of a message, or the number of acknowledged messages.
mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT);
$next = 'STREAM id FROM jobs LIMIT 1 WAIT 10';
$ack = 'ACK jobs WHERE id = 1 AND epoch = 1';
$persistent = isset($_GET['persistent']);
if ($_GET['by'] === 'pdo') {
    $address = "mysql:host=127.0.0.1;port={$_GET['port']};dbname={$_GET['database']}";
    $pdo = new PDO($address, 'root', '', [PDO::ATTR_PERSISTENT => $persistent]);
    echo $_GET['do'] === 'query' ? $pdo->query($next)->fetchColumn() : $pdo->exec($ack);
} else {
    $host = ($persistent ? 'p:' : '') . '127.0.0.1';
    $mysqli = new mysqli($host, 'root', '', $_GET['database'], (int) $_GET['port']);
    if ($_GET['do'] === 'query') {
        echo $mysqli->query($next)->fetch_row()[0];
    } else {
        $mysqli->query($ack);
        echo $mysqli->affected_rows;
    }
}
