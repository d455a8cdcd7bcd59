// Enqueue, stream and acknowledge with go-sql-driver/mysql:
// go run orders.go HOST PORT USER PASSWORD DATABASE
package main

import (
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net"
	"os"

	"github.com/go-sql-driver/mysql"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// With interpolate, the driver writes arguments into the text; without, it prepares each statement
// that has arguments.
func open(interpolate bool) *sql.DB {
	config := mysql.NewConfig()
	config.Net, config.Addr = "tcp", net.JoinHostPort(os.Args[1], os.Args[2])
	config.User, config.Passwd, config.DBName = os.Args[3], os.Args[4], os.Args[5]
	config.InterpolateParams = interpolate
	config.TLSConfig = "preferred" // TLS where it is offered, with any certificate
	// ReadTimeout is off by default, and must stay off: an idle stream is silent.
	db, err := sql.Open("mysql", config.FormatDSN())
	check(err)
	return db
}

type executor interface {
	Exec(query string, args ...interface{}) (sql.Result, error)
}

func enqueue(db executor, items ...string) {
	for _, item := range items {
		_, err := db.Exec("INSERT INTO orders (item) VALUES (?)", item)
		check(err)
	}
}

func acknowledge(db executor, order int64, how string) {
	done, err := db.Exec("ACK FROM orders WHERE id = ?", order)
	check(err)
	count, err := done.RowsAffected()
	check(err)
	fmt.Printf("acknowledged %d, %s: %d\n", order, how, count)
}

// Rows are returned as they come. Closing them reads the rest of the result, so LIMIT gives it an
// end. Each row is acknowledged on another connection, which the pool provides.
func stream(text, prepared *sql.DB) (first int64) {
	rows, err := text.Query("STREAM id, item FROM orders LIMIT 3")
	check(err)
	for rows.Next() {
		var order int64
		var item string
		check(rows.Scan(&order, &item))
		fmt.Printf("received %d %s\n", order, item)
		if item == "bread" {
			acknowledge(prepared, order, "prepared")
			enqueue(prepared, "jam") // reaches the open stream at once
			fmt.Println("enqueued jam")
		} else {
			acknowledge(text, order, "text")
		}
		if first == 0 {
			first = order
		}
	}
	check(rows.Err())
	return first
}

// A long poll is an ordinary result. The work and its acknowledgement are one transaction. It has
// one connection, so the rows are read to their end before the next statement. Commit work only if
// its ACK, with AND epoch = n, affected the message: docs/recipes.md shows why.
func poll(db *sql.DB, waitSeconds float64) (count int) {
	transaction, err := db.Begin()
	check(err)
	rows, err := transaction.Query("STREAM id, item FROM orders LIMIT ? WAIT ?", 1, waitSeconds)
	check(err)
	var received []int64
	for rows.Next() {
		var order int64
		var item string
		check(rows.Scan(&order, &item))
		fmt.Printf("received %d %s\n", order, item)
		received = append(received, order)
	}
	check(rows.Err())
	for _, order := range received {
		acknowledge(transaction, order, "in the transaction")
	}
	check(transaction.Commit())
	return len(received)
}

func main() {
	text, prepared := open(true), open(false)
	defer text.Close()
	defer prepared.Close()

	transaction, err := text.Begin()
	check(err)
	enqueue(transaction, "tea", "bread")
	check(transaction.Commit())
	fmt.Println("enqueued tea, bread")

	transaction, err = text.Begin()
	check(err)
	enqueue(transaction, "milk")
	check(transaction.Rollback())
	fmt.Println("rolled back milk")

	first := stream(text, prepared)
	acknowledge(prepared, first, "again")

	_, err = text.Query("STREAM * FROM customers")
	var refused *mysql.MySQLError
	if errors.As(err, &refused) {
		fmt.Printf("refused %d: %s\n", refused.Number, refused.Message)
	}

	enqueue(text, "salt")
	fmt.Println("enqueued salt")
	poll(prepared, 20)
	if poll(text, 0.5) == 0 {
		fmt.Println("nothing came")
	}
}
