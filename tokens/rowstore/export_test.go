package rowstore

// The decoders of rows.
var (
	DecodeRecord = decodeRecord
	DecodeClaim  = decodeClaim
)
