package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"slices"
	"strings"
)

// A guard is one condition under which a function refuses, fails or sets an error. Each operand of || is a separate guard.
type guard struct {
	number   int
	pkg      string
	file     string
	line     int
	function string
	text     string // the condition, with the statement that it checks
	switched string // value of the condition when the guard is off: "never true" or "always true"
	reason   string // why no test can notice that the guard is off
	reached  bool   // whether a test reaches it
	killer   string // the test that noticed that the guard is off
}

// key identifies a guard without its line number.
func (g *guard) key() string { return fmt.Sprintf("%s: %s: %s", g.file, g.function, g.text) }

func (g *guard) String() string {
	state := "survived"
	if g.killer != "" {
		state = "noticed by " + g.killer
	} else if !g.reached {
		state = "reached by no test"
	}
	return fmt.Sprintf("%s:%d: %s, %s\n\t%s", g.file, g.line, state, g.switched, g.key())
}

// An insertion inserts text into a source file.
type insertion struct {
	at   int
	text string
}

// finder finds the guards of one file.
type finder struct {
	set        *token.FileSet
	next       int
	guards     []*guard
	insertions []insertion
	before     map[ast.Node]ast.Stmt // the statement before each statement
	keys       map[string]int
}

// guardsOf finds the guards of a file and numbers them, beginning with first. It returns the source with inserted calls of
// mutant.
func guardsOf(path string, first int) (string, []*guard, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	f := &finder{set: token.NewFileSet(), next: first, before: map[ast.Node]ast.Stmt{}, keys: map[string]int{}}
	file, err := parser.ParseFile(f.set, path, source, parser.SkipObjectResolution)
	if err != nil {
		return "", nil, err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch fn := n.(type) {
		case *ast.FuncDecl:
			name := fn.Name.Name
			if fn.Recv != nil {
				name = strings.TrimPrefix(f.print(fn.Recv.List[0].Type), "*") + "." + name
			}
			if fn.Body != nil {
				f.function(name, fn.Type, fn.Body)
			}
			return false
		case *ast.FuncLit: // a function in a variable of the package
			f.function("var", fn.Type, fn.Body)
			return false
		}
		return true
	})
	slices.SortStableFunc(f.insertions, func(a, b insertion) int { return a.at - b.at })
	var out bytes.Buffer
	done := 0 // bytes of the source already copied
	for _, i := range f.insertions {
		out.Write(source[done:i.at])
		out.WriteString(i.text)
		done = i.at
	}
	out.Write(source[done:])
	return out.String(), f.guards, nil
}

// function finds the guards of one function and of the function literals in it.
func (f *finder) function(name string, typ *ast.FuncType, body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			f.function(name, n.Type, n.Body)
			return false
		case *ast.BlockStmt:
			for i := range len(n.List) - 1 {
				f.before[n.List[i+1]] = n.List[i]
			}
		case *ast.IfStmt:
			if refuses(typ, n.Body.List) || f.passesOn(n) {
				about := n.Init
				if about == nil {
					about = f.before[n]
				}
				f.operands(name, about, n.Cond, token.LOR)
			}
		case *ast.SwitchStmt:
			for _, s := range n.Body.List {
				if c := s.(*ast.CaseClause); n.Tag == nil && refuses(typ, c.Body) {
					for _, cond := range c.List {
						f.operands(name, n.Init, cond, token.LOR)
					}
				}
			}
		case *ast.ReturnStmt:
			if b, ok := last(n.Results).(*ast.BinaryExpr); ok && returns(typ, "bool") && (b.Op == token.LAND || b.Op == token.LOR) {
				f.operands(name, f.before[n], b, b.Op)
			}
		}
		return true
	})
}

// operands adds a guard for each operand of a chain of || or &&.
func (f *finder) operands(function string, about ast.Stmt, cond ast.Expr, op token.Token) {
	switch e := cond.(type) {
	case *ast.ParenExpr:
		f.operands(function, about, e.X, op)
		return
	case *ast.BinaryExpr:
		if e.Op == op {
			f.operands(function, about, e.X, op)
			f.operands(function, about, e.Y, op)
			return
		}
	}
	position := f.set.Position(cond.Pos())
	g := &guard{number: f.next, line: position.Line, function: function, text: f.print(cond), switched: "never true"}
	call := fmt.Sprintf(") && mutant(%d))", g.number)
	if op == token.LAND {
		g.switched, call = "always true", fmt.Sprintf(") || !mutant(%d))", g.number)
	}
	if a, ok := about.(*ast.AssignStmt); ok && slices.ContainsFunc(a.Lhs, func(e ast.Expr) bool { return mentions(cond, f.print(e)) }) {
		g.text = fmt.Sprintf("%.100s; %s", f.print(about), g.text)
	}
	if f.keys[function+g.text]++; f.keys[function+g.text] > 1 {
		g.text += fmt.Sprintf(" #%d", f.keys[function+g.text])
	}
	f.next++
	f.guards = append(f.guards, g)
	f.insertions = append(f.insertions, insertion{position.Offset, "(("}, insertion{f.set.Position(cond.End()).Offset, call})
}

// refuses reports whether statements set an error, or end the way in which functions refuse, fail or skip something.
func refuses(typ *ast.FuncType, body []ast.Stmt) bool {
	if slices.ContainsFunc(body, setsError) {
		return true
	}
	switch s := last(body).(type) {
	case *ast.AssignStmt: // errs = append(errs, …)
		return is(s.Lhs[0], "errs")
	case *ast.BranchStmt:
		return s.Tok == token.CONTINUE
	case *ast.ReturnStmt:
		value := last(s.Results)
		switch {
		case value == nil:
			return false
		case returns(typ, "bool"):
			return is(value, "false")
		case returns(typ, "error") && is(value, "nil"): // returns zero values and no error
			return len(s.Results) > 1 && !slices.ContainsFunc(s.Results, func(e ast.Expr) bool { return !isZero(e) })
		}
		_, pointer := last(typ.Results.List).Type.(*ast.StarExpr)
		return (returns(typ, "error") || pointer) && !is(value, "nil")
	}
	return false
}

// setsError reports whether a statement assigns one error: err = e, p.err = e or p = plan{err: e}.
func setsError(s ast.Stmt) bool {
	a, ok := s.(*ast.AssignStmt)
	if !ok || a.Tok != token.ASSIGN || len(a.Lhs) != len(a.Rhs) { // v, err = f() is a call that can fail
		return false
	}
	for i, value := range a.Rhs {
		fields := []ast.Expr{&ast.KeyValueExpr{Key: a.Lhs[i], Value: value}}
		if literal, ok := value.(*ast.CompositeLit); ok {
			fields = append(fields, literal.Elts...)
		}
		for _, field := range fields {
			if f, ok := field.(*ast.KeyValueExpr); ok && isError(f.Key) && !is(f.Value, "nil") {
				return true
			}
		}
	}
	return false
}

// passesOn reports whether a statement only returns an existing error: if p.err != nil { return p }.
func (f *finder) passesOn(n *ast.IfStmt) bool {
	s, ok := last(n.Body.List).(*ast.ReturnStmt)
	return ok && len(s.Results) == 1 && f.print(n.Cond) == f.print(s.Results[0])+".err != nil"
}

// isError reports whether a variable or field has the name of an error.
func isError(e ast.Expr) bool {
	if s, ok := e.(*ast.SelectorExpr); ok {
		e = s.Sel
	}
	return is(e, "err") || is(e, "Err")
}

func returns(typ *ast.FuncType, name string) bool {
	return typ.Results != nil && is(last(typ.Results.List).Type, name)
}

func is(e ast.Expr, name string) bool {
	i, ok := e.(*ast.Ident)
	return ok && i.Name == name
}

func isZero(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return e.Value == "0" || e.Value == `""`
	case *ast.CompositeLit:
		return len(e.Elts) == 0
	}
	return is(e, "nil") || is(e, "false")
}

func mentions(in ast.Expr, name string) bool {
	found := false
	ast.Inspect(in, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		found = found || ok && is(e, name)
		return !found
	})
	return found
}

func last[T any](of []T) (t T) {
	if len(of) > 0 {
		t = of[len(of)-1]
	}
	return t
}

// print formats a node in one line.
func (f *finder) print(n ast.Node) string {
	var b bytes.Buffer
	_ = printer.Fprint(&b, f.set, n)
	return strings.Join(strings.Fields(b.String()), " ")
}
