# The one door to building, running and testing kubejoin: make help.

GO      ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -s -w -X main.release=$(VERSION) -X main.commit=$(COMMIT)

# The race detector needs a C compiler. Without one tests run without it, and say so; in CI
# that is an error.
RACE := $(if $(shell command -v $(or $(CC),gcc,cc) 2>/dev/null),-race)

.PHONY: help build run demo kube test unit check bench fuzz mutate clean
.DEFAULT_GOAL := help

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/kubejoin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/kubejoin ./cmd/kubejoin

run: build ## start a standalone join service on https://127.0.0.1:9443
	bin/kubejoin serve --data-dir ./kubejoin-data

demo: build ## join a real node to a real control plane through kubejoin (root; the first time builds Kubernetes, about 6 minutes)
	@$(GO) build -o bin/demo ./test/demo
	@bin/demo

kube: ## build the real Kubernetes components that tests and demo run
	@$(GO) run ./test/demo -build

test: check kube ## run all tests (node tests need root)
	@test -n '$(RACE)' || { echo 'make test: no C compiler, so no race detector: install gcc for it'; test -z "$$CI"; }
	$(GO) test $(RACE) -count 1 -timeout 40m ./...
	cd test/importer && $(GO) test $(RACE) -count 1 -timeout 20m ./...

unit: ## run the tests that need no Kubernetes and no root, quickly
	$(GO) test -short ./...

check: ## vet, format and static analysis
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt-ed: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) mod tidy -diff
	cd test/kube && $(GO) mod tidy -diff
	cd test/cfssl && $(GO) mod tidy -diff
	cd test/ignition && $(GO) mod tidy -diff && $(GO) vet ./...
	cd test/importer && $(GO) mod tidy -diff && $(GO) mod tidy -diff -modfile=go.newest.mod
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.7.0 ./...

# make bench QUICK=1 sees whether it works; ROUNDS, CSRS and TOKENS are sizes, ONLY is one of the
# subjects csr, tokens, join, size, certificate, api, go; INTO=docs/benchmarks.md puts the figures there, too.
BENCH := $(if $(QUICK),-quick) $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(CSRS),-csrs $(CSRS)) $(if $(TOKENS),-tokens $(TOKENS)) $(if $(ONLY),-only $(ONLY)) $(if $(PROFILE),-profile $(PROFILE)) $(if $(INTO),-into $(INTO))
bench: build ## measure kubejoin beside kube-controller-manager and cfssl (about 50 minutes; the first time builds Kubernetes)
	@$(GO) build -o bin/bench ./test/bench
	@bin/bench $(BENCH)

FUZZTIME ?= 1m
fuzz: ## run each fuzz target for FUZZTIME (1m)
	@GO='$(GO)' test/fuzz.sh $(FUZZTIME)

# make mutate ONLY=./signer switches off the guards of one package; RUN=TestIssue runs these tests alone.
mutate: kube ## switch off each guard of tokens, signer and server, and report those that no test protects
	@$(GO) run ./test/mutate $(if $(ONLY),-only '$(ONLY)') $(if $(RUN),-run '$(RUN)')

clean: ## remove what was built (not kubejoin-data)
	rm -rf bin test/kube/bin test/cfssl/bin
