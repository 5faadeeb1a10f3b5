package rowstate

// BeforeWrite returns the files with a function that runs before each write. If it fails, the write fails.
func (f Files) BeforeWrite(do func() error) Files {
	f.beforeWrite = do
	return f
}
