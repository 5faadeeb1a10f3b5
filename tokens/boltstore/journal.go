package boltstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// A journal is a file with the newest entries of the issuance record, until they are in the database. Each entry is the
// rows of one call of Append.
// It exists because a database transaction costs several times as much as writing a few entries.
//
// The size of the file never changes, so that a sync writes only entries and no file system metadata. The
// file has two halves. Entries that are written together form a group. The journal appends groups to
// one half until it is full. It then overwrites the other half, whose entries are in the database by then.
// It never deletes entries: a reader recognizes old ones by their numbers.
//
// A group is a header, then its entries, each after its length in 4 bytes. The header has 16 bytes:
//   - 8 bytes: the number of the first entry, which is one more than that of the entry before
//   - 4 bytes: the number of bytes after the header
//   - 4 bytes: the CRC-32C of the first 12 bytes of the header and of everything after the header
type journal struct {
	path string
	file *os.File  // nil until the first write
	half int       // the current half, 0 or 1
	used int64     // bytes used in the current half
	last [2]uint64 // number of the last entry in each half
	buf  []byte
}

const (
	journalHalf = 1 << 20
	groupHeader = 16
	lineHeader  = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A journalEntry is the rows of one call of Append.
type journalEntry struct {
	number uint64
	v      []byte // the keys and values of the rows, each after its length
	err    error
}

func entryOf(changes []rowstore.Change) *journalEntry {
	size := 0
	for _, c := range changes {
		size += 2*binary.MaxVarintLen32 + len(c.Key) + len(c.Value)
	}
	l := &journalEntry{v: make([]byte, 0, size)}
	for _, c := range changes {
		l.v = append(binary.AppendUvarint(l.v, uint64(len(c.Key))), c.Key...)
		l.v = append(binary.AppendUvarint(l.v, uint64(len(c.Value))), c.Value...)
	}
	return l
}

// changes returns the rows of an entry. The error wraps [ErrDamaged].
func (l *journalEntry) changes() (changes []rowstore.Change, err error) {
	rest := l.v
	next := func() []byte {
		n, size := binary.Uvarint(rest)
		if size <= 0 || uint64(len(rest)-size) < n {
			err = fmt.Errorf("%w: entry %d: invalid length", ErrDamaged, l.number)
			return nil
		}
		part := rest[size : size+int(n)]
		rest = rest[size+int(n):]
		return part
	}
	for len(rest) > 0 && err == nil {
		c := rowstore.Change{Key: string(next()), Value: next()}
		if err == nil && (!isAppended(c.Key) || strings.HasSuffix(c.Key, "/")) {
			err = fmt.Errorf("%w: entry %d: invalid key", ErrDamaged, l.number)
		}
		changes = append(changes, c)
	}
	return changes, err
}

// isAppended reports whether the journal may have rows of the folder of a key.
func isAppended(key string) bool {
	folder, _, _ := strings.Cut(key, "/")
	return slices.ContainsFunc(appendedBuckets, func(bucket []byte) bool { return folder == string(bucket) })
}

// sizeOf returns how many bytes lines take as one group.
func sizeOf(lines ...*journalEntry) int64 {
	size := int64(groupHeader)
	for _, l := range lines {
		size += lineHeader + int64(len(l.v))
	}
	return size
}

// fits reports whether the current half has space for size bytes.
func (j *journal) fits(size int64) bool { return j.used+size <= journalHalf }

// switchHalves switches to the other half, which write then overwrites.
func (j *journal) switchHalves() { j.half, j.used = 1-j.half, 0 }

// write appends lines, which must fit, to the current half as one group. When it returns, they are on the
// disk. After an error they may be on the disk or not, and the next write overwrites them.
func (j *journal) write(lines []*journalEntry) error {
	if j.file == nil {
		if err := j.create(); err != nil {
			return err
		}
	}
	j.buf = append(j.buf[:0], make([]byte, groupHeader)...)
	for _, l := range lines {
		j.buf = append(binary.BigEndian.AppendUint32(j.buf, uint32(len(l.v))), l.v...)
	}
	binary.BigEndian.PutUint64(j.buf, lines[0].number)
	binary.BigEndian.PutUint32(j.buf[8:], uint32(len(j.buf)-groupHeader))
	binary.BigEndian.PutUint32(j.buf[12:], sumOf(j.buf))
	if _, err := j.file.WriteAt(j.buf, int64(j.half)*journalHalf+j.used); err != nil {
		return err
	}
	if err := datasync(j.file); err != nil {
		return &fs.PathError{Op: "sync", Path: j.path, Err: err}
	}
	j.used += int64(len(j.buf))
	j.last[j.half] = lines[len(lines)-1].number
	return nil
}

// sumOf returns the checksum of a group.
func sumOf(group []byte) uint32 {
	return crc32.Update(crc32.Checksum(group[:12], castagnoli), castagnoli, group[groupHeader:])
}

// create creates the file and writes all its blocks, so that on most file systems later writes need no more
// space.
func (j *journal) create() error {
	f, err := openPrivate(j.path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 2*journalHalf))
	if err = errors.Join(err, f.Sync()); err != nil {
		return errors.Join(err, f.Close(), os.Remove(j.path))
	}
	j.file, j.half, j.used, j.last = f, 0, 0, [2]uint64{}
	return nil
}

// remove closes and deletes the file. All its entries must be in the database.
func (j *journal) remove() error {
	if j.file == nil {
		return nil
	}
	err := errors.Join(j.file.Close(), os.Remove(j.path))
	j.file = nil
	return err
}

// readJournal returns the entries in the file at path with numbers above known, sorted by number. complete
// is false if entries are missing or damaged, for example because only a part of the last group was written
// before a power failure.
func readJournal(path string, known uint64) (lines []*journalEntry, complete bool, err error) {
	f, err := openPrivate(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, false, err
	}
	content, err := io.ReadAll(io.LimitReader(f, 2*journalHalf))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, false, err
	}
	middle := min(len(content), journalHalf)
	halves := []half{readHalf(content[:middle]), readHalf(content[middle:])}
	slices.SortFunc(halves, func(a, b half) int { return cmp.Compare(a.first, b.first) })
	next, complete := known+1, true
	for _, h := range halves {
		for i, v := range h.entries {
			if number := h.first + uint64(i); number > known {
				complete = complete && number == next
				next = number + 1
				lines = append(lines, &journalEntry{number: number, v: v})
			}
		}
	}
	for _, h := range halves {
		complete = complete && h.stopped != next
	}
	return lines, complete, nil
}

// A half has the readable entries of one half of a journal.
type half struct {
	first, next uint64 // number of the first entry, and that after the last one
	entries     [][]byte
	stopped     uint64 // number in the header of the first unreadable group; 0 if there is none
}

func readHalf(content []byte) half {
	var h half
	for len(content) >= groupHeader {
		number, length := binary.BigEndian.Uint64(content), int64(binary.BigEndian.Uint32(content[8:]))
		if number == 0 || h.next != 0 && number != h.next { // unused space or an old group
			return h
		}
		h.stopped = number
		if groupHeader+length > int64(len(content)) {
			return h
		}
		group := content[:groupHeader+length]
		if sumOf(group) != binary.BigEndian.Uint32(content[12:]) {
			return h
		}
		var entries [][]byte
		for rest := group[groupHeader:]; len(rest) > 0; {
			if len(rest) < lineHeader || int64(len(rest)-lineHeader) < int64(binary.BigEndian.Uint32(rest)) {
				return h
			}
			end := lineHeader + int(binary.BigEndian.Uint32(rest))
			entries, rest = append(entries, rest[lineHeader:end]), rest[end:]
		}
		if h.next == 0 {
			h.first, h.next = number, number
		}
		h.entries = append(h.entries, entries...)
		h.next += uint64(len(entries))
		h.stopped = 0
		content = content[len(group):]
	}
	return h
}
