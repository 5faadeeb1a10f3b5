// Package test contains the end-to-end tests, one folder for each subject. The tests run the real kubejoin with the
// real kube-apiserver, kubeadm, kubelet and kube-controller-manager: 'make e2e'. With -short, as 'make test' runs them,
// those are skipped that need one of the others.
//
//	folder          what its tests check
//	access          permissions: of callers, kubejoin's own rights, the approval policy, certificates over HTTPS
//	ca              CA files, signers and the serving certificate are replaced without a restart
//	coexist         kubejoin beside kube-controller-manager, and after others edit its objects
//	differential    the same decisions and certificates as kube-controller-manager
//	docs            the docs name what exists in the code (no Kubernetes needed)
//	ha              several replicas on one etcd, without Kubernetes
//	host            the static pod and the systemd unit, in namespaces like their sandboxes
//	join            machines join: forms of the join command, discovery, the webhook, kubelet certificates
//	kubeadm         a whole cluster by kubeadm init, with containers; kubejoin as a DaemonSet
//	limits          limited tokens and claims of node names
//	load            many tokens, connections and requests, and no leaks after them
//	monitoring      alert rules and dashboard, with a real Prometheus
//	outage          a dead API server, a dead leader, silent connections, failing writes
//	standalone      kubejoin without Kubernetes
//	storm           hundreds of simulated machines join at once while the leader dies; also the program of 'make storm'
//
//	console         the page in a real browser (a module of its own)
//	importer        programs that import kubejoin as a library (a module of its own)
//
// The tests share three packages: cluster runs Kubernetes, etcd runs etcd alone, harness runs kubejoin and has the common
// requests, waits and checks. The other folders are tools: bench, demo, mutate, suite and fuzz.sh for the Makefile, and
// the modules kube, containers, etcdctl and ignition, which build programs that the tests run.
//
// Run one subject with:
//
//	go test ./test/join
package test
