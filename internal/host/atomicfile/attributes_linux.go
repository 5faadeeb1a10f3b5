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

// keepAttributes gives a file the ACL, the SELinux label and the user's attributes of another one. Other attributes, such as
// security.ima, fit only the old content.
func keepAttributes(from, to string) error {
	list := make([]byte, 1<<16) // Linux has no longer list and no longer value
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
	if !slices.Contains(names, acl) { // the folder may have a default ACL
		_ = syscall.Removexattr(to, acl) // fails without an ACL
	}
	value, present := make([]byte, 1<<16), make([]byte, 1<<16)
	for _, name := range names {
		n, err := syscall.Getxattr(from, name, value)
		if err == nil {
			// SELinux may refuse to set even the label that a file has.
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
