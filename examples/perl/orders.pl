# Enqueue, stream and acknowledge with DBD::mysql: perl orders.pl HOST PORT USER PASSWORD DATABASE
use strict;
use warnings;
use DBI;

$| = 1;
my ($host, $port, $user, $password, $database) = @ARGV;

# mysql_read_timeout is off by default, and must stay off: an idle stream is silent. With
# mysql_server_prepare the server prepares; without it the driver writes arguments into the text.
sub connect_to_it {
    my %options = @_;
    return DBI->connect("DBI:mysql:database=$database;host=$host;port=$port", $user, $password,
        { RaiseError => 1, PrintError => 0, AutoCommit => 1, %options });
}

# A stream keeps its connection busy, so everything else uses others.
my $streaming = connect_to_it();
my $text      = connect_to_it();
my $prepared  = connect_to_it(mysql_server_prepare => 1, mysql_server_prepare_disable_fallback => 1);

sub enqueue {
    my ($db, @items) = @_;
    my $insert = $db->prepare('INSERT INTO orders (item) VALUES (?)');
    $insert->execute($_) for @items;
}

sub acknowledge {
    my ($db, $order, $how) = @_;
    my $ack = $db->prepare('ACK FROM orders WHERE id = ?');
    my $count = 0 + $ack->execute($order);    # none is '0E0', a true zero
    print "acknowledged $order, $how: $count\n";
}

# Enqueueing is an INSERT in a transaction of your own.
$text->begin_work;
enqueue($text, 'tea', 'bread');
$text->commit;
print "enqueued tea, bread\n";

$text->begin_work;
enqueue($text, 'milk');
$text->rollback;
print "rolled back milk\n";

# mysql_use_result returns each row as it comes; without it execute() waits for the end of the
# result. Finishing it reads the rest of the result, so LIMIT gives the result an end.
my $first;
my $orders = $streaming->prepare('STREAM id, item FROM orders LIMIT 3', { mysql_use_result => 1 });
$orders->execute;
while (my ($order, $item) = $orders->fetchrow_array) {
    print "received $order $item\n";
    if ($item eq 'bread') {
        acknowledge($prepared, $order, 'prepared');
        enqueue($prepared, 'jam');    # reaches the open stream at once
        print "enqueued jam\n";
    }
    else {
        acknowledge($text, $order, 'text');
    }
    $first //= $order;
}
$streaming->disconnect;

acknowledge($prepared, $first, 'again');

eval { $text->do('STREAM * FROM customers') };
print 'refused ', $text->err, ': ', $text->errstr, "\n" if $@;

# A long poll is an ordinary result. The work and its acknowledgement are one transaction.
# Commit work only if its ACK, with AND epoch = n, affected the message: docs/recipes.md shows why.
enqueue($text, 'salt');
print "enqueued salt\n";
my $poll = 'STREAM id, item FROM orders LIMIT ? WAIT ?';
$prepared->begin_work;
for my $row (@{ $prepared->selectall_arrayref($poll, undef, 1, 20) }) {
    my ($order, $item) = @$row;
    print "received $order $item\n";
    acknowledge($prepared, $order, 'in the transaction');
}
$prepared->commit;

print "nothing came\n" if !@{ $prepared->selectall_arrayref($poll, undef, 1, 0.5) };
$_->disconnect for $text, $prepared;
