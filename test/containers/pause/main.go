// Command pause is the program for pod sandboxes, and for pods that do nothing. It prints its arguments and waits for a
// signal. With -once as first argument, it does not wait.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	words := os.Args[1:]
	once := len(words) > 0 && words[0] == "-once"
	if once {
		words = words[1:]
	}
	if len(words) > 0 {
		fmt.Println(strings.Join(words, " "))
	}
	if !once {
		<-stop
	}
}
