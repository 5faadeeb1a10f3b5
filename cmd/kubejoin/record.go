package main

import (
	"fmt"

	"github.com/kubejoin/kubejoin/signer/issuance"
)

// standardOutput is the --issuance-record of lines on standard output.
const standardOutput = "-"

// openRecord opens the file of --issuance-record.
func (s *service) openRecord() error {
	switch file := s.options.issuanceRecord; file {
	case "":
	case standardOutput:
		s.lines = issuance.NewWriter(s.stdout)
	default:
		w, err := issuance.OpenFile(file)
		if err != nil {
			return fmt.Errorf("--issuance-record: %w", err)
		}
		s.lines, s.closers = w, append(s.closers, w.Close)
	}
	return nil
}

// record is where the authority keeps what it has issued: the store in --data-dir, if there is one,
// and the lines of --issuance-record. It is nil if there is neither.
func (s *service) record() issuance.Log { return issuance.Logs(s.kept, s.lines) }
