package atomicfile_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// aclOf returns, in the format of Linux, an ACL for mode 0640 that also lets user 1234 read.
func aclOf() []byte {
	const owner, user, group, mask, others, nobody = 1, 2, 4, 0x10, 0x20, 0xffffffff
	value := binary.LittleEndian.AppendUint32(nil, 2) // version
	for _, entry := range []struct {
		tag, rights uint16
		id          uint32
	}{{owner, 6, nobody}, {user, 4, 1234}, {group, 4, nobody}, {mask, 4, nobody}, {others, 0, nobody}} {
		value = binary.LittleEndian.AppendUint16(value, entry.tag)
		value = binary.LittleEndian.AppendUint16(value, entry.rights)
		value = binary.LittleEndian.AppendUint32(value, entry.id)
	}
	return value
}

// setAttribute sets an extended attribute. It skips the test if the file system does not support attributes.
func setAttribute(t *testing.T, file, name string, value []byte) {
	t.Helper()
	if err := syscall.Setxattr(file, name, value, 0); errors.Is(err, syscall.ENOTSUP) {
		t.Skipf("the file system of %s has no attribute %s", file, name)
	} else {
		must.OK(t, err)
	}
}

func attribute(file, name string) string {
	value := make([]byte, 1<<16)
	n, err := syscall.Getxattr(file, name, value)
	if err != nil {
		return err.Error()
	}
	return string(value[:n])
}

// Catches a file whose replacement lacks the ACL of a monitoring agent, or an attribute of a backup program.
func TestReplaceKeepsExtendedAttributes(t *testing.T) {
	const accessACL, label = "system.posix_acl_access", "user.kubejoin"
	file := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(file, []byte("old"), 0o640))
	for name, value := range map[string][]byte{accessACL: aclOf(), label: []byte("x"), "user.empty": nil} {
		setAttribute(t, file, name, value)
	}
	must.OK(t, atomicfile.Replace(file, []byte("new")))
	if got := string(must.Value(os.ReadFile(file))(t)); got != "new" {
		t.Errorf("got %q, want the new content", got)
	}
	for name, want := range map[string]string{accessACL: string(aclOf()), label: "x", "user.empty": ""} {
		if got := attribute(file, name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if info := must.Value(os.Stat(file))(t); info.Mode() != 0o640 {
		t.Errorf("got mode %v, want 0640", info.Mode())
	}
	// Write is for new secrets: it must not give other users the access that they had to the old file.
	must.OK(t, atomicfile.Write(file, []byte("secret")))
	for _, name := range []string{accessACL, label} {
		if got := attribute(file, name); got != syscall.ENODATA.Error() {
			t.Errorf("Write: %s: got %q, want no attribute", name, got)
		}
	}
}

// Catches a replacement that gets the folder's default ACL, so that more users can read it than the old file.
func TestReplaceTakesNoACLOfFolder(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must.OK(t, os.WriteFile(file, nil, 0o640))
	setAttribute(t, dir, "system.posix_acl_default", aclOf())
	must.OK(t, atomicfile.Replace(file, []byte("new")))
	if got := attribute(file, "system.posix_acl_access"); got != syscall.ENODATA.Error() {
		t.Errorf("got the ACL %q, want none", got)
	}
}

// Catches a replacement without the old attributes: if attributes cannot be kept, KeepOwner must return an error.
func TestKeepOwnerRefusesToLoseAttributes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(file, []byte("old"), 0o600))
	setAttribute(t, file, "user.kubejoin", []byte("x"))
	r := must.Value(atomicfile.Prepare(file))(t)
	defer r.Drop()
	for _, temporary := range must.Value(filepath.Glob(filepath.Join(filepath.Dir(file), ".file.*")))(t) {
		must.OK(t, os.Remove(temporary)) // setting attributes on the missing file fails
	}
	if err := r.KeepOwner(); err == nil || !strings.Contains(err.Error(), file+": keep its extended attribute user.kubejoin: ") {
		t.Errorf("got %v, want an error that names the attribute", err)
	}
}
