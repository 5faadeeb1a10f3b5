package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// acl is the attribute with the ACL of a file.
const acl = "system.posix_acl_access"

// keepAttributes copies the ACL, the SELinux label and the user's attributes from one file to another. It does not copy
// attributes that fit only the old content, for example security.ima.
func keepAttributes(from, to string) error {
	list := make([]byte, 1<<16) // Linux limits lists and values to this size
	n, err := syscall.Listxattr(from, list)
	if errors.Is(err, syscall.ENOTSUP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: keep its extended attributes: %w", from, err)
	}
	names := slices.DeleteFunc(strings.Split(string(list[:n]), "\x00"), func(name string) bool {
		return !strings.HasPrefix(name, "user.") && name != "security.selinux" && name != acl
	})
	if !slices.Contains(names, acl) { // the new file may have the folder's default ACL
		_ = syscall.Removexattr(to, acl) // fails if the file has no ACL
	}
	value, present := make([]byte, 1<<16), make([]byte, 1<<16)
	for _, name := range names {
		n, err := syscall.Getxattr(from, name, value)
		if err == nil {
			// Do not set a label that the file already has: SELinux may refuse even that.
			if m, err := syscall.Getxattr(to, name, present); err == nil && bytes.Equal(present[:m], value[:n]) {
				continue
			}
			err = syscall.Setxattr(to, name, value[:n], 0)
		}
		if err != nil {
			return fmt.Errorf("%s: keep its extended attribute %s: %w", from, name, err)
		}
	}
	return nil
}
