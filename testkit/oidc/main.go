// Command oidc is an OpenID Connect provider for tests: the mock of oauth2-proxy's own tests, on an address of its own.
// It signs every visitor in as the same user, without a password.
//
//	oidc ADDRESS NAME CLIENT SECRET    listens on ADDRESS; its issuer is http://NAME/oidc
package main

import (
	"fmt"
	"log"
	"net"
	"os"

	"github.com/oauth2-proxy/mockoidc"
)

func run(address, name, client, secret string) error {
	provider, err := mockoidc.NewServer(nil)
	if err != nil {
		return err
	}
	provider.ClientID, provider.ClientSecret = client, secret
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	if err := provider.Start(named{listener, name}, nil); err != nil {
		return err
	}
	log.Printf("serving as %s", provider.Issuer())
	select {}
}

// named is a listener whose address is the name that clients use for it. The mock derives its URLs from this
// address.
type named struct {
	net.Listener
	name string
}

func (n named) Addr() net.Addr { return address(n.name) }

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: oidc ADDRESS NAME CLIENT SECRET")
		os.Exit(64)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
}
