// Answers each line, a number, with its square; a goroutine for each connection, and some that make work for the collector.
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"time"
)

func work(kept [][]byte) {
	for i := 0; ; i++ {
		kept[i%len(kept)] = make([]byte, 1000+i%5000)
		if i%1000 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

func serve(connection net.Conn) {
	defer connection.Close()
	lines := bufio.NewScanner(connection)
	for lines.Scan() {
		var number int64
		fmt.Sscan(lines.Text(), &number)
		fmt.Fprintln(connection, number*number)
	}
}

func main() {
	listener, err := net.Listen("tcp4", ":"+os.Args[1])
	if err != nil {
		panic(err)
	}
	for i := 0; i < 2; i++ {
		go work(make([][]byte, 1000))
	}
	fmt.Println("ready")
	for {
		connection, err := listener.Accept()
		if err != nil {
			panic(err)
		}
		go serve(connection)
	}
}
