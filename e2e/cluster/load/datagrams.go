package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"
)

// answerWait is how long a client waits for the answer to a datagram.
const answerWait = time.Second

// echoDatagrams sends every client its datagrams back.
func echoDatagrams(ctx context.Context) error {
	socket, err := net.ListenPacket("udp", ":7000")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { socket.Close() })
	buffer := make([]byte, 65536)
	for {
		length, client, err := socket.ReadFrom(buffer)
		if err != nil {
			return nil // closed
		}
		_, _ = socket.WriteTo(buffer[:length], client) // a client that has left gets no answer
	}
}

// send prints how many of its datagrams a server has sent back.
func send(count, server string) error {
	number, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	socket, err := net.Dial("udp", server)
	if err != nil {
		return err
	}
	defer socket.Close()
	came, buffer := 0, make([]byte, 2048)
	for n := range number {
		text := fmt.Sprintf("datagram %d", n)
		_, _ = fmt.Fprint(socket, text) // a datagram that is refused has no answer
		if err := socket.SetReadDeadline(time.Now().Add(answerWait)); err != nil {
			return err
		}
		if length, err := socket.Read(buffer); err == nil && string(buffer[:length]) == text {
			came++
		}
	}
	fmt.Println(came)
	return nil
}
