package rowstate

// BeforeWrite returns the files with a function that runs before each write, and makes it fail.
func (f Files) BeforeWrite(do func() error) Files {
	f.beforeWrite = do
	return f
}
