package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/integration/containers"
)

// TestTLSWithAClientCertificate: with the certificate a limiter decides, without one the server is out of reach.
func TestTLSWithAClientCertificate(t *testing.T) {
	ca := newAuthority(t)
	serverCert, clientCert := ca.issue(t, "server"), ca.issue(t, "client")
	dir := t.TempDir()
	writeCertificate(t, dir, "ca", ca.certificate)
	writeCertificate(t, dir, "server", serverCert)

	secure := func(certificates ...tls.Certificate) func(*rueidis.ClientOption) {
		return func(o *rueidis.ClientOption) {
			o.TLSConfig = &tls.Config{RootCAs: ca.pool, ServerName: "127.0.0.1", Certificates: certificates}
		}
	}
	s := containers.Start(t, containers.Spec{
		Image: containers.Usual(),
		TLS:   true,
		Args: strings.Fields("--tls-cert-file /tls/server.crt --tls-key-file /tls/server.key --tls-ca-cert-file /tls/ca.crt" +
			" --tls-auth-clients yes"),
		Binds:  []string{dir + ":/tls:ro"},
		Client: secure(clientCert),
	})
	if err := walk(t.Context(), newLimiter(t, s.Client, sluice.Config{}), 100, []limit{logOf(10, time.Second)}, nil); err != nil {
		t.Error(err)
	}

	option := rueidis.ClientOption{InitAddress: []string{s.Addr}, DisableCache: true}
	secure()(&option)
	if client, err := rueidis.NewClient(option); err == nil {
		client.Close()
		t.Error("a client without a certificate was let in")
	}
	option.TLSConfig = nil
	if client, err := rueidis.NewClient(option); err == nil {
		client.Close()
		t.Error("a client without TLS was let in")
	}
}

// authority signs the certificates of one test.
type authority struct {
	certificate tls.Certificate
	pool        *x509.CertPool
	serial      int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	a.certificate = a.issue(t, "authority")
	a.pool.AddCert(a.certificate.Leaf)
	return a
}

// issue makes a certificate for 127.0.0.1; the first one is the authority's own.
func (a *authority) issue(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a.serial++
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(a.serial),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	parent, signer := a.certificate.Leaf, a.certificate.PrivateKey
	if parent == nil {
		template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// writeCertificate puts a certificate and its key into name.crt and name.key.
func writeCertificate(t *testing.T, dir, name string, c tls.Certificate) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".crt": {Type: "CERTIFICATE", Bytes: c.Certificate[0]},
		name + ".key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
