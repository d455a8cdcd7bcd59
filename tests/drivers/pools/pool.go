// Go's database/sql: it closes connections that were idle for 0.3 s, and those that are 0.3 s old.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"os"
	"time"

	_ "github.com/go-sql-driver/mysql"
)

const next = "STREAM id FROM jobs LIMIT 1 WAIT 10"

func must(err error) {
	if err != nil {
		panic(err)
	}
}

type querier interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

func number(from querier, statement string) (found int64) {
	must(from.QueryRowContext(context.Background(), statement).Scan(&found))
	return
}

func main() {
	pool, err := sql.Open("mysql", "root@tcp(127.0.0.1:"+os.Args[1]+")/"+os.Args[2])
	must(err)
	pool.SetConnMaxIdleTime(300 * time.Millisecond)
	pool.SetConnMaxLifetime(300 * time.Millisecond)
	var held *sql.Conn
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		var answer int64
		switch commands.Text() {
		case "hold":
			held, err = pool.Conn(context.Background())
			must(err)
			answer = number(held, next)
		case "query":
			answer = number(pool, next)
		case "idle":
			answer = number(pool, "SELECT CONNECTION_ID()")
		case "return":
			must(held.Close())
		case "ack":
			result, err := pool.Exec("ACK jobs WHERE id = 1 AND epoch = 1")
			must(err)
			answer, err = result.RowsAffected()
			must(err)
		case "cancel": // A wait of 20 s.
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			if pool.QueryRowContext(ctx, "STREAM id FROM jobs LIMIT 1 WAIT 20").Scan(&answer) != context.DeadlineExceeded {
				panic("not cancelled")
			}
			cancel()
		}
		fmt.Println(answer)
	}
	must(pool.Close())
}
