package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// signer signs tokens of an issuer.
type signer struct{ key *ecdsa.PrivateKey }

func newSigner(t *testing.T) signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signer{key}
}

// encoded is the encoding of the parts of a token (RFC 7515).
var encoded = base64.RawURLEncoding

// keys is the set of the signer's public keys (RFC 7517).
func (s signer) keys(t *testing.T) string {
	t.Helper()
	point, err := s.key.PublicKey.Bytes() // 4, x, y
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"keys": [{"kty": "EC", "crv": "P-256", "kid": "one", "use": "sig", "x": %q, "y": %q}]}`,
		encoded.EncodeToString(point[1:33]), encoded.EncodeToString(point[33:]))
}

// bearer returns the header with a token that expires at this time.
func (s signer) bearer(t *testing.T, audience string, ends time.Time, groups ...string) string {
	t.Helper()
	claims, err := json.Marshal(map[string]any{
		"iss": "https://id.example.com", "sub": "ann", "aud": audience, "exp": ends.Unix(), "groups": groups,
	})
	if err != nil {
		t.Fatal(err)
	}
	text := encoded.EncodeToString([]byte(`{"alg":"ES256","kid":"one"}`)) + "." + encoded.EncodeToString(claims)
	digest := sha256.Sum256([]byte(text))
	r, z, err := ecdsa.Sign(rand.Reader, s.key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	z.FillBytes(signature[32:])
	return "Authorization: Bearer " + text + "." + encoded.EncodeToString(signature)
}
