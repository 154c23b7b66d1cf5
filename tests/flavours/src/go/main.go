// Goroutines on timers, channels, a map and garbage: every value that was sent is received once, in order for its sender.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
)

type message struct {
	sender int
	number int
	body   []byte
}

const senders = 50

func sender(id int, out chan<- message, stop <-chan struct{}, sent *int, wg *sync.WaitGroup) {
	defer wg.Done()
	ticker := time.NewTicker(time.Duration(1+id%7) * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			body := make([]byte, 100+id*10)
			for i := range body {
				body[i] = byte(id + *sent + i)
			}
			out <- message{id, *sent, body}
			*sent++
		}
	}
}

func main() {
	pid := os.Getpid()
	out := make(chan message, 16)
	stop := make(chan struct{})
	sent := make([]int, senders)
	got := make(map[int]int)
	kept := make(map[int][]byte)
	var wg, collector sync.WaitGroup
	wrong := 0
	for id := 0; id < senders; id++ {
		wg.Add(1)
		go sender(id, out, stop, &sent[id], &wg)
	}
	collector.Add(1)
	go func() {
		defer collector.Done()
		total := 0
		for m := range out {
			if m.number != got[m.sender] || extra(m.number) != m.number+1 {
				wrong++
			}
			for i, b := range m.body {
				if b != byte(m.sender+m.number+i) {
					wrong++
				}
			}
			got[m.sender]++
			kept[m.number%500] = m.body
			total++
			if total%500 == 0 {
				fmt.Println("tick", total)
			}
		}
	}()
	for {
		if _, err := os.Stat("go"); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
		runtime.GC()
	}
	close(stop)
	wg.Wait()
	close(out)
	collector.Wait()
	for id := range sent {
		if sent[id] != got[id] {
			wrong++
		}
	}
	if wrong != 0 || os.Getpid() != pid {
		fmt.Println("result wrong:", wrong)
		os.Exit(1)
	}
	fmt.Println("result ok")
}
