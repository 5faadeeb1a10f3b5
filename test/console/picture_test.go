package console

import (
	"bytes"
	"encoding/binary"
	"flag"
	"hash/crc32"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/kubejoin/kubejoin/internal/testing/joining"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/test/harness"
)

var update = flag.Bool("update", false, "write the pictures of the page in docs")

// The size of a picture, in pixels.
const width, height = 1100, 980

// TestPicturesShowThePage fails if the pictures in docs show other texts than the page. The pixels differ between machines, because
// their fonts do. So each picture contains its text.
func TestPicturesShowThePage(t *testing.T) {
	for language, name := range map[string]string{"en": "docs/console.png", "zh-CN": "docs/zh-CN/console.png"} {
		endpoint, roots := serve(t, func() []api.Join { return joining.Machines(time.Now()).Items })
		p := open(t, endpoint, roots, language)
		run(p, chromedp.EmulateViewport(width, height))
		p.signIn(bearer)
		p.see("rack7-13")
		file := harness.RepositoryFile(t, name)
		if *update {
			screenshot := must.Value(png.Decode(bytes.NewReader(run(p, chromedp.CaptureScreenshot()))))(t)
			must.OK(t, os.WriteFile(file, withText(compress(t, screenshot), p.shown()), 0o644))
		}
		content := must.Value(os.ReadFile(file))(t)
		p.await("the text of "+name+", which is made by go test . -run TestPicturesShowThePage -update", "document.body.innerText === "+quote(textOf(content)))
		picture := must.Value(png.Decode(bytes.NewReader(content)))(t)
		colors := map[color.Color]bool{}
		for y := range height {
			for x := range width {
				colors[picture.At(x, y)] = true
			}
		}
		if size := picture.Bounds().Size(); size != image.Pt(width, height) || len(colors) < 50 || len(content) > 100_000 {
			t.Errorf("%s has %v pixels, %d colors and %d bytes", name, size, len(colors), len(content))
		}
	}
}

// compress returns a small PNG of a picture: with its 256 most frequent colors.
func compress(t *testing.T, picture image.Image) []byte {
	t.Helper()
	size, count := picture.Bounds(), map[color.Color]int{}
	for y := range size.Dy() {
		for x := range size.Dx() {
			count[picture.At(x, y)]++
		}
	}
	frequent := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] })
	small := image.NewPaletted(size, frequent[:min(256, len(frequent))])
	draw.Draw(small, size, picture, image.Point{}, draw.Src)
	var b bytes.Buffer
	must.OK(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, small))
	return b.Bytes()
}

// description is the start of a chunk with a text in UTF-8.
const description = "iTXtDescription\x00\x00\x00\x00\x00"

// withText adds a text to a PNG, before its last chunk.
func withText(picture []byte, text string) []byte {
	chunk := []byte(description + text)
	body, end := picture[:len(picture)-12], picture[len(picture)-12:]
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(chunk))
	return bytes.Join([][]byte{body, binary.BigEndian.AppendUint32(nil, uint32(len(chunk)-4)), chunk, sum, end}, nil)
}

// textOf returns the text that withText has added.
func textOf(picture []byte) string {
	_, text, _ := bytes.Cut(picture, []byte(description))
	return string(text[:max(0, len(text)-16)]) // without the sum, and the last chunk
}
