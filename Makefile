# Builds, runs and tests kubejoin. List all targets: make help.

GO      ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -s -w -X main.release=$(VERSION) -X main.commit=$(COMMIT)

# Without the traces of gRPC, which use html/template, the linker can drop unused methods: 43 MB instead of 62 MB.
TAGS := grpcnotrace

# Without cgo, as releases are: then kubejoin and most tests share what is compiled. The race detector needs cgo.
PURE := CGO_ENABLED=0 $(GO)

# The race detector needs a C compiler.
RACE := $(if $(shell command -v $(or $(CC),gcc) 2>/dev/null),-race)

# Where `make image` and `make release` write. The version of Go and the time of the commit are fixed, so that a commit
# makes the same files on each machine.
DIST := dist
HELM = $(GO) run helm.sh/helm/v4/cmd/helm@$(shell $(GO) -C test/chart list -m -f "{{.Version}}" helm.sh/helm/v4)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
image release: export GOTOOLCHAIN = go1.26.8
CHART_VERSION := $(or $(patsubst v%,%,$(filter v%,$(VERSION))),0.0.0-g$(VERSION))
PACK := $(GO) -C deploy/image run . -version '$(VERSION)' -revision '$(COMMIT)' -epoch '$(SOURCE_DATE_EPOCH)'
NAMED := $(DIST)/kubejoin-$(VERSION)

# KUBE=1.35.4 takes this version of Kubernetes for the tests, demos and benchmark; empty is the newest. test/kube pins the
# newest in go.mod, and each other version in go.VERSION.mod.
KUBE ?=
export KUBE
OLDER := $(sort $(patsubst test/kube/go.%.mod,%,$(wildcard test/kube/go.*.mod)))

.PHONY: help build image release always run run-ha demo demo-cluster kube manifests test e2e test-matrix stress nightly check prose outdated bench storm fuzz mutate clean
.DEFAULT_GOAL := help

help: ## list all targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/kubejoin
	$(PURE) build -tags $(TAGS) -trimpath -ldflags '$(LDFLAGS)' -o bin/kubejoin ./cmd/kubejoin

$(NAMED)-%: always
	$(if $(and $(VERSION),$(COMMIT),$(SOURCE_DATE_EPOCH)),,$(error not in a git clone: pass VERSION, COMMIT and SOURCE_DATE_EPOCH))
	GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) \
	  $(PURE) build -tags $(TAGS) -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $@ ./cmd/kubejoin

PLATFORMS ?= linux-amd64 linux-arm64
image: $(PLATFORMS:%=$(NAMED)-%) ## build container images for PLATFORMS (linux-amd64 linux-arm64), with SBOMs, into dist/
	$(PACK) $(abspath $^)

release: ## build a whole release into dist/: binaries, images, SBOMs, chart, manifests and SHA256SUMS
	rm -f $(DIST)/kubejoin-* $(DIST)/SHA256SUMS
	$(MAKE) image $(NAMED)-darwin-arm64
	$(PACK) $(abspath $(NAMED)-darwin-arm64)
	$(HELM) package deploy/chart/kubejoin --destination $(DIST) --version $(CHART_VERSION) --app-version $(VERSION)
	$(PACK) $(abspath $(DIST)/kubejoin-$(CHART_VERSION).tgz)
	$(HELM) template kubejoin $(DIST)/kubejoin-$(CHART_VERSION).tgz --namespace kubejoin-system \
	  --set createNamespace=true --kube-version 1.37 >$(NAMED)-manifests.yaml
	cd $(DIST) && sha256sum kubejoin-* >SHA256SUMS

run: build ## start a standalone join service on https://127.0.0.1:9443
	bin/kubejoin serve --data-dir ./kubejoin-data

run-ha: build ## start three join services on three etcd members, on https://127.0.0.1:9443 to 9445 (the first run builds etcd, 2 minutes)
	@$(GO) build -o bin/demo ./test/demo
	@bin/demo -ha

demo: build ## join a real node to a real control plane through kubejoin (needs root; the first run builds Kubernetes, 6 minutes)
	@$(GO) build -o bin/demo ./test/demo
	@bin/demo

demo-cluster: build ## make a whole cluster with kubeadm init and containers, join a worker, and remove it (needs root, runc, iptables)
	@$(GO) build -o bin/demo ./test/demo
	@bin/demo -cluster

kube: ## build the Kubernetes, containerd and etcdctl binaries for tests and demo
	@$(GO) run ./test/demo -build

manifests: ## write deploy/manifests and the README of the chart
	cd test/chart && $(GO) run . -chart ../../deploy/chart/kubejoin -out ../../deploy/manifests
	cd test/chart && for file in revocation node-properties joining-policy claims-policy; do \
	  $(GO) run . -chart ../../deploy/chart/kubejoin -values testdata/options.yaml -only $$file.yaml -out ../../deploy || exit; done
	cd test/chart && $(GO) run . -chart ../../deploy/chart/kubejoin -static -out ../../deploy
	$(GO) run github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2 --chart-search-root deploy/chart --log-level error

test: check ## run all tests that need only Go, make and git: no root and no Kubernetes (12 minutes)
	@$(GO) run ./test/suite test

# CORE=1 runs one test for each promise. ONLY=join runs one stage, or the tests of one folder; with RUN=TestX, these tests.
e2e: ## run all tests with real components (40 minutes; needs root and programs of Debian, which it names)
	@$(GO) run ./test/suite e2e $(if $(CORE),-core) $(if $(ONLY),-only '$(ONLY)') $(if $(RUN),-run '$(RUN)')

test-matrix: ## run all tests with real components on each supported version of Kubernetes
	$(MAKE) e2e KUBE=
	for version in $(OLDER); do $(MAKE) e2e KUBE=$$version || exit; done

# PKG=./signer selects the package, RUN=TestX its tests. FULL=1 runs also those that 'make test' leaves to 'make e2e'.
stress: ## run the tests of PKG 20 times with the race detector, beside two busy loops
	@$(if $(PKG),,echo 'make stress: want PKG=./FOLDER' >&2; exit 2;) \
	for i in 1 2; do (while :; do :; done) & loops="$$loops $$!"; done; trap 'kill $$loops' EXIT; trap 'exit 130' INT TERM; \
	$(GO) test $(RACE) -vet=off -count 20 -timeout 1h $(if $(FULL),,-short) $(if $(RUN),-run '$(RUN)') $(PKG)

CHURN ?= 2h
nightly: fuzz ## fuzz, swap CAs while they sign, then let machines join and leave for CHURN (2h): memory must stay flat
	KUBEJOIN_TEST_SIGNATURES=100000 $(GO) test $(RACE) -count 1 -timeout 1h -run '^(TestCertificatesAreRightWhileCAIsReplaced|TestSwapsCAWhileItSigns|TestSignLikeClusterBootstrap)$$' ./signer ./internal/signerd ./clusterinfo
	KUBEJOIN_TEST_CHURN=$(CHURN) $(GO) test -count 1 -timeout 0 -v -run '^TestMemoryStaysFlatUnderChurn$$' ./test/ha

check: ## check formatting, go vet, staticcheck and the messages of new commits
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt-ed: $$unformatted"; exit 1; }
	$(PURE) vet ./...
	$(PURE) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
	@$(GO) run ./test/suite commits

prose: ## check the words of docs and comments
	$(GO) run github.com/vale-cli/vale/v3/cmd/vale@v3.21.0 --config test/prose/vale.ini $$(git ls-files '*.md' '*.go')

# Without test/kube and test/specs, which have the versions of Kubernetes.
FOLLOWING := . test/importer test/chart test/console test/containers test/etcdctl test/ignition deploy/image cmd/kubejoin-pkcs11
NEWER := '{{with .Update}}{{printf "%-70s %-36s %s" $$.Path $$.Version .Version}}{{end}}'
outdated: ## list direct requirements and tools that have a newer version: module, ours, newest
	@found=$$(for dir in $(FOLLOWING); do \
	    direct=$$($(GO) -C $$dir list -m -f '{{if not (or .Main .Indirect .Replace)}}{{.Path}}{{end}}' all) && \
	    $(GO) -C $$dir list -m -u -f $(NEWER) $$direct || exit; \
	  done; \
	  $(GO) list -m -u -f $(NEWER) $$(sed -n 's,.*run \([^ ]*\)/cmd/[^ ]*\(@v[^ ]*\).*,\1\2,p' Makefile)) && echo "$$found" | sort -u

# QUICK=1 runs a short trial. ROUNDS, CSRS, TOKENS and ENTRIES set sizes. ONLY selects one subject: csr, tokens, join, start,
# certificate, store, record or memory. INTO=docs/benchmarks.md also writes the main rows to this file.
# test/bench/README.md explains the subjects and rows.
BENCH := $(if $(QUICK),-quick) $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(CSRS),-csrs $(CSRS)) $(if $(TOKENS),-tokens $(TOKENS)) $(if $(ENTRIES),-entries $(ENTRIES)) $(if $(ONLY),-only $(ONLY)) $(if $(INTO),-into $(INTO))
bench: build ## compare the speed of kubejoin and kube-controller-manager (an hour; the first run builds Kubernetes)
	@$(GO) build -o bin/bench ./test/bench
	@bin/bench $(BENCH)

# MACHINES, REPLICAS, TOKENS (each, one, both), KEYS (P-256,RSA-4096), RAMP, ATONCE, HEARTBEAT, REJOIN=24h and REVOKED=100 set
# what joins. PLOT=FILE and OUTPUT=json change what it writes; with json, run make -s. 'bin/storm -help' explains all flags.
STORM := $(if $(MACHINES),-machines $(MACHINES)) $(if $(REPLICAS),-replicas $(REPLICAS)) $(if $(TOKENS),-tokens $(TOKENS)) $(if $(KEYS),-keys $(KEYS)) $(if $(RAMP),-ramp $(RAMP)) $(if $(ATONCE),-at-once $(ATONCE)) $(if $(HEARTBEAT),-heartbeat $(HEARTBEAT)) $(if $(REJOIN),-rejoin-window $(REJOIN)) $(if $(REVOKED),-revoked $(REVOKED)) $(if $(PLOT),-plot $(PLOT)) $(if $(OUTPUT),-o $(OUTPUT))
storm: build ## let MACHINES (1000) simulated kubelets join REPLICAS (3) at once, while a leader dies and a network breaks
	@$(GO) build -o bin/storm ./test/storm
	@bin/storm $(STORM)

FUZZTIME ?= 1m
fuzz: ## run each fuzz target for FUZZTIME (1m)
	@GO='$(GO)' test/fuzz.sh $(FUZZTIME)

# ONLY=./signer selects the guards of one package, TESTS=./signer the tests of one. RUN=TestIssue runs only these tests.
mutate: kube ## switch off each guard of tokens, minting, signer and server, and report those without a failing test
	@$(GO) run ./test/mutate $(if $(ONLY),-only '$(ONLY)') $(if $(TESTS),-tests '$(TESTS)') $(if $(RUN),-run '$(RUN)')

clean: ## remove build results (not kubejoin-data and kubejoin-ha-data)
	rm -rf bin dist test/kube/bin test/containers/bin test/etcdctl/bin test/specs/bin
