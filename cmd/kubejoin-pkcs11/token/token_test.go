package token

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/cmd/kubejoin-pkcs11/softhsm"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/miekg/pkcs11"
)

func open(t *testing.T, uri URI) *Key {
	t.Helper()
	k := must.Value(Open(uri))(t)
	t.Cleanup(func() { must.OK(t, k.Close()) })
	return k
}

func uri(t *testing.T, h softhsm.HSM, token, object string) URI {
	t.Helper()
	return must.Value(ParseURI(h.URI(token, object)))(t)
}

func verify(public crypto.PublicKey, digest, signature []byte) bool {
	switch key := public.(type) {
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, digest, signature) == nil
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(key, digest, signature)
	}
	return false
}

func keys(t *testing.T) map[string]crypto.Signer {
	return map[string]crypto.Signer{
		"rsa":  must.Value(rsa.GenerateKey(rand.Reader, 2048))(t),
		"p256": must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t),
		"p384": must.Value(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))(t),
		"p521": must.Value(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))(t),
	}
}

// A CA with its key on a token must sign certificates with the imported key.
func TestSignsCertificates(t *testing.T) {
	h := softhsm.New(t, "other", "ca")
	id := 0
	for name, key := range keys(t) {
		id++
		h.Import("ca", name, fmt.Sprintf("0%d", id), key)
		k := open(t, uri(t, h, "ca", name))
		if !k.Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(key.Public()) {
			t.Errorf("%s: got another key", name)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "kubernetes"}}
		der := must.Value(x509.CreateCertificate(rand.Reader, template, template, k.Public(), k))(t)
		cert := must.Value(x509.ParseCertificate(der))(t)
		must.Value(signer.NewCA([]*x509.Certificate{cert}, k))(t)
		must.OK(t, cert.CheckSignatureFrom(cert))
	}
}

func TestSignsConcurrently(t *testing.T) {
	h := softhsm.New(t, "ca")
	all := keys(t)
	for name, id := range map[string]string{"rsa": "01", "p256": "02"} {
		h.Import("ca", name, id, all[name])
		k := open(t, uri(t, h, "ca", name))
		var group sync.WaitGroup
		var bad []error
		var mu sync.Mutex
		for worker := range 50 {
			group.Go(func() {
				for i := range 20 {
					digest := sha256.Sum256([]byte(fmt.Sprint(worker, i)))
					signature, err := k.Sign(rand.Reader, digest[:], crypto.SHA256)
					if err == nil && !verify(all[name].Public(), digest[:], signature) {
						err = errors.New("wrong signature")
					}
					if err != nil {
						mu.Lock()
						bad = append(bad, err)
						mu.Unlock()
					}
				}
			})
		}
		group.Wait()
		if len(bad) > 0 {
			t.Errorf("%s: %d of 1000 signatures failed, the first with: %v", name, len(bad), bad[0])
		}
	}
}

// While the token is removed, each call must fail with ErrUnavailable. When the token is back, the Key must sign again
// by itself.
func TestComesBackAfterTokenWasRemoved(t *testing.T) {
	h := softhsm.New(t, "ca")
	key := keys(t)["p256"]
	h.Import("ca", "k", "01", key)
	k := open(t, uri(t, h, "ca", "k"))
	digest := sha256.Sum256([]byte("x"))
	must.Value(k.Sign(rand.Reader, digest[:], crypto.SHA256))(t)

	putBack := h.Remove()
	var err error
	for range 100 { // SoftHSM may still have the key in memory
		if _, err = k.Sign(rand.Reader, digest[:], crypto.SHA256); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrUnavailable) {
		t.Fatalf("the token is away: got %v, want ErrUnavailable", err)
	}
	signed := func() ([]byte, error) {
		k.mu.Lock()
		k.next = time.Time{}
		k.mu.Unlock()
		return k.Sign(rand.Reader, digest[:], crypto.SHA256)
	}
	if _, err := signed(); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("the token is still away: got %v, want ErrUnavailable", err)
	}
	putBack()
	var signature []byte
	wait.OK(t, "the token is back", func() error { // the last session may still be closing
		signature, err = signed()
		return err
	})
	if !verify(key.Public(), digest[:], signature) {
		t.Error("the token is back: its signature is invalid")
	}
}

// A token may return with another key under the same name. Its signatures would make certificates that no client trusts.
func TestRefusesAnotherKeyOnReturn(t *testing.T) {
	h := softhsm.New(t, "ca")
	h.Import("ca", "k", "01", keys(t)["p256"])
	k := open(t, uri(t, h, "ca", "k"))
	must.OK(t, k.session.context.Close()) // simulates a failure
	k.session = nil
	h.Util("--delete-token", "--token", "ca")
	h.Util("--init-token", "--free", "--label", "ca", "--so-pin", "314159", "--pin", softhsm.PIN)
	h.Import("ca", "k", "01", keys(t)["p256"])
	digest := sha256.Sum256([]byte("x"))
	if _, err := k.Sign(rand.Reader, digest[:], crypto.SHA256); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "another key of this name") {
		t.Errorf("got %v, want an error about another key", err)
	}
}

// A token locks itself after some wrong PINs. So kubejoin must try a PIN only once.
func TestTriesWrongPINOnce(t *testing.T) {
	const wrongPIN = "161803"
	h := softhsm.New(t, "ca")
	h.Import("ca", "k", "01", keys(t)["p256"])
	uri := uri(t, h, "ca", "k")
	h.WritePIN(wrongPIN)
	k := &Key{uri: uri, slots: make(chan struct{}, maxSessions), public: keys(t)["p256"].Public()} // the same state as after Open
	var messages []string
	for range 3 {
		_, err := k.open()
		if !errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), wrongPIN) {
			t.Fatalf("got %v, want ErrUnavailable and no PIN", err)
		}
		messages = append(messages, err.Error())
	}
	if !strings.Contains(messages[0], "the token refused the PIN in "+h.PINFile+": failed to log into long term session: pkcs11: 0xA0: CKR_PIN_INCORRECT") ||
		!strings.Contains(messages[1], "kubejoin does not try it again; write the right one into the file") || messages[1] != messages[2] {
		t.Errorf("got %q", messages)
	}
	h.WritePIN(softhsm.PIN)
	// A service manager restarts the program. The starts must not use up the tries.
	if _, err := Open(uri); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "a wrong PIN was tried before") {
		t.Errorf("at the start after a wrong PIN: got %v", err)
	}
	s := must.Value(k.open())(t)
	must.OK(t, s.context.Close())
}

func TestOpenNamesWhatIsWrong(t *testing.T) {
	h := softhsm.New(t, "ca", "twice", "twice")
	h.Import("ca", "k", "01", keys(t)["p256"])
	good := uri(t, h, "ca", "k")
	exposed := filepath.Join(h.Dir, "exposed")
	must.OK(t, os.WriteFile(exposed, []byte(softhsm.PIN), 0o644))
	for want, change := range map[string]func(u *URI){
		"0 of ":                             func(u *URI) { u.Token = "none" },
		"2 of ":                             func(u *URI) { u.Token = "twice" },
		"0 keys with a public key":          func(u *URI) { u.Object = "none" },
		"PIN: open /nowhere":                func(u *URI) { u.PINFile = "/nowhere" },
		"mode is 0644":                      func(u *URI) { u.PINFile = exposed },
		"/etc/passwd is no PKCS#11 library": func(u *URI) { u.Module = "/etc/passwd" },
	} {
		uri := good
		change(&uri)
		if _, err := Open(uri); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), softhsm.PIN) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	bySerial := open(t, good)
	if _, info, err := find(good); err != nil || info.SerialNumber == "" {
		t.Errorf("got no serial number: %v", err)
	} else if err := bySerial.Close(); err != nil {
		t.Error(err)
	} else {
		uri := good
		uri.Token, uri.Serial, uri.Object, uri.ID = "", info.SerialNumber, "", "\x01"
		open(t, uri)
	}
}

// Catches a kubejoin that refuses or ignores attributes that p11tool prints. If it ignores one, it could send the PIN
// to another token.
func TestOpensOnlyWhatAllAttributesName(t *testing.T) {
	h := softhsm.New(t, "ca")
	h.Import("ca", "k", "01", keys(t)["p256"])
	path, query, _ := strings.Cut(h.URI("ca", "k"), "?")
	const ofP11tool = ";model=SoftHSM%20v2;manufacturer=SoftHSM%20project;type=private" // p11tool --list-privkeys
	open(t, must.Value(ParseURI(path+ofP11tool+"?"+query))(t))
	open(t, must.Value(ParseURI(path+";library-manufacturer=SoftHSM;library-description=Implementation%20of%20PKCS11;library-version=2.6?"+query))(t))
	for attribute, want := range map[string]string{
		"model=YubiKey":           "0 of ",
		"manufacturer=Yubico":     "0 of ",
		"library-manufacturer=x":  softhsm.Module + ` is another library: library-manufacturer="SoftHSM", library-description="Implementation of PKCS11", library-version=2.6`,
		"library-description=x":   " is another library: ",
		"library-version=2":       " is another library: ", // 2.0
		"library-version=2.60":    " is another library: ",
		"serial=0000000000000000": "0 of ",
	} {
		if _, err := Open(must.Value(ParseURI(path + ";" + attribute + "?" + query))(t)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", attribute, err, want)
		}
	}
}

// oneSerial is the source of a library in front of SoftHSM. It reports the same serial number for all tokens,
// including the free one.
const oneSerial = `#include <dlfcn.h>
#include <string.h>
typedef struct { unsigned char version[2]; void *functions[68]; } list; // CK_FUNCTION_LIST
static list mine;
static unsigned long (*token_info)(unsigned long, char *);
static unsigned long same_serial(unsigned long slot, char *info) {
	unsigned long code = token_info(slot, info);
	memcpy(info + 80, "1234567890123456", 16);
	return code;
}
unsigned long C_GetFunctionList(list **out) {
	list *softhsm;
	unsigned long code = ((unsigned long (*)(list **))dlsym(dlopen("` + softhsm.Module + `", RTLD_NOW), "C_GetFunctionList"))(&softhsm);
	mine = *softhsm;
	token_info = mine.functions[6];
	mine.functions[6] = same_serial; // C_GetTokenInfo
	*out = &mine;
	return code;
}
`

// Two tokens have the same serial number, and the URI names one of them by its label. Catches a PIN that is sent to
// the other token.
func TestOpensTokenOfLabelAmongTokensOfOneSerial(t *testing.T) {
	need.Programs(t, "gcc")
	h := softhsm.New(t, "ca", "backup")
	source, library := filepath.Join(h.Dir, "library.c"), filepath.Join(h.Dir, "library.so")
	must.OK(t, os.WriteFile(source, []byte(oneSerial), 0o600))
	if out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-o", library, source, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for label, key := range map[string]crypto.Signer{"ca": keys(t)["p256"], "backup": keys(t)["p384"]} {
		h.Import(label, "k", "01", key)
		u := uri(t, h, label, "k")
		u.Module = library
		if k := must.Value(Open(u))(t); !k.Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(key.Public()) {
			t.Errorf("%s: got the key of the other token", label)
		} else {
			must.OK(t, k.Close())
		}
		u.Token, u.Serial = "", "1234567890123456"
		if _, err := Open(u); err == nil || !strings.Contains(err.Error(), "3 of 3 tokens have this name, want one") {
			t.Errorf("by the serial number: got %v, want an error", err)
		}
	}
}

// If the library does not return, its callers must not wait without a limit.
func TestSignGivesUpWhenAllSessionsAreBusy(t *testing.T) {
	k := &Key{slots: make(chan struct{}, 1), timeout: time.Millisecond}
	k.slots <- struct{}{}
	digest := bytes.Repeat([]byte{1}, 32)
	if _, err := k.Sign(rand.Reader, digest, crypto.SHA256); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "busy") {
		t.Errorf("got %v", err)
	}
}

func TestLocks(t *testing.T) {
	for flags, want := range map[uint][2]bool{ // results at the start and later
		0: {}, pkcs11.CKF_USER_PIN_INITIALIZED: {}, pkcs11.CKF_SO_PIN_FINAL_TRY: {},
		pkcs11.CKF_USER_PIN_COUNT_LOW:                                 {true, false},
		pkcs11.CKF_USER_PIN_COUNT_LOW | pkcs11.CKF_USER_PIN_FINAL_TRY: {true, true},
		pkcs11.CKF_USER_PIN_LOCKED:                                    {true, true},
	} {
		info := pkcs11.TokenInfo{Flags: flags}
		if got := [2]bool{locks(info, true), locks(info, false)}; got != want {
			t.Errorf("flags %x: got %t, want %t", flags, got, want)
		}
	}
}

func TestLoginRefused(t *testing.T) {
	login := func(err error) error { return fmt.Errorf("failed to log into long term session: %w", err) }
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{login(pkcs11.Error(pkcs11.CKR_PIN_INCORRECT)), true},
		{login(pkcs11.Error(pkcs11.CKR_FUNCTION_FAILED)), true},
		{login(pkcs11.Error(pkcs11.CKR_VENDOR_DEFINED)), true},
		{login(errors.New("other")), true},
		{login(pkcs11.Error(pkcs11.CKR_TOKEN_NOT_PRESENT)), false},
		{login(pkcs11.Error(pkcs11.CKR_DEVICE_REMOVED)), false},
		{pkcs11.Error(pkcs11.CKR_GENERAL_ERROR), false}, // fails before the login
	} {
		if got := loginRefused(test.err); got != test.want {
			t.Errorf("%v: got %t, want %t", test.err, got, test.want)
		}
	}
}
