#!/bin/bash
# Enqueue, stream and acknowledge with the command line:
# bash orders.bash HOST PORT USER PASSWORD DATABASE
# CLIENT may name the program and its options (default: mysql). MySQL's client without TLS needs
# CLIENT='mysql --get-server-public-key'.
set -euo pipefail

host=$1 port=$2 user=$3 database=$5
export MYSQL_PWD=$4

# --quick returns each row as it comes; stdbuf prevents the C library from gathering 4 KiB first.
# --batch and --skip-column-names print only rows, with columns separated by tabs.
read -ra client <<<"${CLIENT:-mysql}"
client=(stdbuf -oL "${client[@]}" "--host=$host" "--port=$port" "--user=$user" --batch --skip-column-names --quick "$database")

# One connection for everything except the stream, open as long as this script: when a connection
# ends, its unacknowledged messages go to other consumers.
coproc working { "${client[@]}"; }
exec 3<&"${working[0]}" 4>&"${working[1]}"
ask() { # prints the rows of the statements
	echo "$1; SELECT 'that was all';" >&4
	while read -r row <&3 || exit 1; do # the client ended; it has printed its error
		[ "$row" != 'that was all' ] || return 0
		echo "$row"
	done
}

acknowledge() {
	echo "acknowledged $1, $2: $(ask "BEGIN; ACK FROM orders WHERE id = $1; SELECT ROW_COUNT(); COMMIT")"
}

# Enqueueing is an INSERT in a transaction of your own.
ask "BEGIN; INSERT INTO orders (item) VALUES ('tea'), ('bread'); COMMIT"
echo 'enqueued tea, bread'

ask "BEGIN; INSERT INTO orders (item) VALUES ('milk'); ROLLBACK"
echo 'rolled back milk'

# A LIMIT ends the stream; so do Ctrl-C and the end of this script.
first=
while read -r order item; do
	echo "received $order $item"
	acknowledge "$order" text
	if [ "$item" = bread ]; then
		ask "INSERT INTO orders (item) VALUES ('jam')" # reaches the open stream at once
		echo 'enqueued jam'
	fi
	first=${first:-$order}
done < <("${client[@]}" --execute='STREAM id, item FROM orders LIMIT 3')

acknowledge "$first" again

# The client writes errors to standard error: ERROR number (SQLSTATE) at line n: text.
if ! error=$("${client[@]}" --execute='STREAM * FROM customers' 2>&1); then
	sed -n 's/^ERROR \([0-9]*\) ([^:]*: /refused \1: /p' <<<"$error"
fi

# A long poll. The work and its acknowledgement are one transaction.
# Commit work only if its ACK, with AND epoch = n, affected the message: docs/recipes.md shows why.
ask "INSERT INTO orders (item) VALUES ('salt')"
echo 'enqueued salt'
read -r order item <<<"$(ask 'BEGIN; STREAM id, item FROM orders LIMIT 1 WAIT 20')"
echo "received $order $item"
acknowledge "$order" 'in the transaction'
ask COMMIT

[ -n "$(ask 'STREAM id, item FROM orders LIMIT 1 WAIT 0.5')" ] || echo 'nothing came'
