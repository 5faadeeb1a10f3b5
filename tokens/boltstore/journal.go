package boltstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"
)

// A journal has the entries of the issuance record that came last, for as long as they are not in
// the database: a transaction for each few of them takes several times what they do themselves.
//
// Its file has a size that does not change, so that what is synced is entries and nothing of the
// file system's, and two halves. Entries go into one half, in groups that were written together,
// until it is full, and then over what is in the other, which is in the database by then. So
// nothing is ever taken out: what is old is known by its numbers.
//
// A group is a header (8 bytes of the number of its first entry, which is one more than that of the
// entry before; 4 of how many bytes follow the header; 4 of a CRC-32C of these 12 and of what follows)
// and its entries as JSON, each after 4 bytes of its length.
type journal struct {
	path string
	file *os.File  // nil until there is an entry
	half int       // that is written to
	used int64     // how much of it
	last [2]uint64 // number of the last entry in each half
	buf  []byte
}

const (
	journalHalf = 1 << 20
	groupHeader = 16
	lineHeader  = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A line is an entry of the issuance record that is to be kept.
type journalEntry struct {
	number uint64
	place  []byte // in bucket "issued"
	ends   []byte // in bucket "ends", of what was issued
	v      []byte // the entry as JSON
	err    error
}

// sizeOf is how much of a half lines take.
func sizeOf(lines ...*journalEntry) int64 {
	size := int64(groupHeader)
	for _, l := range lines {
		size += lineHeader + int64(len(l.v))
	}
	return size
}

// fits reports whether there is room in the half that is written to.
func (j *journal) fits(size int64) bool { return j.used+size <= journalHalf }

// switchHalf goes on with the other half, which is written over.
func (j *journal) turn() { j.half, j.used = 1-j.half, 0 }

// write keeps lines, for which there has to be room. They are on the disk when it returns. After an
// error they may be there or not, and the next ones are written over them.
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

// sumOf is the checksum of a group.
func sumOf(group []byte) uint32 {
	return crc32.Update(crc32.Checksum(group[:12], castagnoli), castagnoli, group[groupHeader:])
}

// create makes the file with all of its blocks, so that there is room for what is to come.
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

// remove is for when all is in the database.
func (j *journal) remove() error {
	if j.file == nil {
		return nil
	}
	err := errors.Join(j.file.Close(), os.Remove(j.path))
	j.file = nil
	return err
}

// readJournal gives the entries in the file at path that have numbers above known, in their order.
// Complete is false if some are missing or cannot be read: the last group, if a part of it alone was
// written, as when power fails, or what is damaged.
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

// A half is what can be read of one.
type half struct {
	first, next uint64 // numbers
	entries     [][]byte
	stopped     uint64 // the number in the header of a group that cannot be read
}

func readHalf(content []byte) half {
	var h half
	for len(content) >= groupHeader {
		number, length := binary.BigEndian.Uint64(content), int64(binary.BigEndian.Uint32(content[8:]))
		if number == 0 || h.next != 0 && number != h.next { // what was there before
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
