//go:build unix

package trustedpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// maxLinks is the maximum number of symbolic links that Check follows, the same as in Linux.
const maxLinks = 40

// Check returns an error if a user other than the caller and root can change or replace the file or folder at path.
// The error names the unsafe path, its owner and mode, and the command that fixes it. It wraps [fs.ErrNotExist] if
// nothing exists at path.
//
// The file or folder must belong to the caller or root, and no other user may write to it. The same holds for every parent
// folder and every symbolic link on the way. Two exceptions apply to parent folders: anyone may write to a folder with the
// sticky bit, for example /tmp, and members of the caller's own groups may write to any parent folder.
func Check(path string) error {
	found, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%s: %w", show(path), errors.Unwrap(err)) // without the name of the system call
	}
	at, rest := "/", parts(path)
	if !filepath.IsAbs(path) {
		folder, err := os.Getwd()
		if err != nil {
			return err
		}
		rest = append(parts(folder), rest...) // keep .. as it is: its meaning depends on links
	}
	for links := 0; ; {
		info, err := os.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) && links > 0 {
			return checkLast(path, found) // an open file such as /dev/stdin or a pipe may have no name
		}
		if err != nil {
			return err
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return fmt.Errorf("%s: %w", show(path), syscall.ELOOP)
			}
			if err := checkOwner(at, info); err != nil {
				return err
			}
			target, err := os.Readlink(at)
			if err != nil {
				return err
			}
			rest = append(parts(target), rest...)
			if at = filepath.Dir(at); filepath.IsAbs(target) {
				at = "/"
			}
		case len(rest) == 0:
			return checkLast(at, info)
		default:
			if err := checkAbove(at, info); err != nil {
				return err
			}
			at, rest = filepath.Join(at, rest[0]), rest[1:]
		}
	}
}

// parts splits a path into the names between slashes.
func parts(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(name string) bool { return name == "" || name == "." })
}

const (
	groupWrites  = 0o020
	othersWrite  = 0o002
	worldOrGroup = groupWrites | othersWrite
)

// checkLast checks the file or folder that the path finally names.
func checkLast(path string, info fs.FileInfo) error {
	if err := checkOwner(path, info); err != nil {
		return err
	}
	if info.Mode().Perm()&worldOrGroup != 0 {
		return fmt.Errorf("%s has %s, so other users can write to it; if you trust the content of this path, run: chmod go-w %s", show(path), describe(info), quote(path))
	}
	return nil
}

// checkAbove checks a parent folder. A user who can write to it can replace its entries.
func checkAbove(path string, info fs.FileInfo) error {
	if err := checkOwner(path, info); err != nil {
		return err
	}
	mode := info.Mode()
	if mode&fs.ModeSticky != 0 || mode.Perm()&worldOrGroup == 0 {
		return nil
	}
	if mode.Perm()&othersWrite == 0 && inGroup(info) {
		return nil
	}
	return fmt.Errorf("the folder %s has %s, so other users can replace its contents; use another one, or: chmod go-w %s", show(path), describe(info), quote(path))
}

// checkOwner checks the owner of a file, folder or link, because the owner can change the mode.
func checkOwner(path string, info fs.FileInfo) error {
	caller := os.Geteuid()
	if owner, _ := ids(info); owner == 0 || owner == caller {
		return nil
	}
	want := "root"
	if caller != 0 {
		want += " or " + name(caller)
	}
	return fmt.Errorf("%s has %s; want owner %s, because any other owner can change it; use another one, or if you trust its content, run: chown -h %d %s",
		show(path), describe(info), want, caller, quote(path))
}

// inGroup reports whether the caller is in the group of a file.
func inGroup(info fs.FileInfo) bool {
	_, group := ids(info)
	groups, err := os.Getgroups()
	return group == os.Getegid() || err == nil && slices.Contains(groups, group)
}

func ids(info fs.FileInfo) (owner, group int) {
	s := info.Sys().(*syscall.Stat_t) // documented for this system
	return int(s.Uid), int(s.Gid)
}

func describe(info fs.FileInfo) string {
	owner, group := ids(info)
	mode := uint32(info.Mode().Perm())
	if info.Mode()&fs.ModeSticky != 0 {
		mode |= 0o1000
	}
	return fmt.Sprintf("owner %s, group %d and mode %04o", name(owner), group, mode)
}

// name returns the user name and ID for messages.
func name(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return fmt.Sprintf("%s (%s)", u.Username, id)
	}
	return id
}
