# A machine for sh join.sh --diagnose: PID 1 of namespaces of its own, with all that a node needs. It gets the folder of
# the programs of Kubernetes, a command that makes the fault, and the command to run.
set -eu
bin=$1 fault=$2
shift 2
mount --make-rprivate /
mount -t proc proc /proc
for dir in /etc/kubernetes /var/lib/kubelet /run /sys/fs/cgroup; do
	mkdir -p "$dir"
	mount -t tmpfs -o mode=0755 tmpfs "$dir"
done
: >/sys/fs/cgroup/cgroup.controllers
printf '127.0.0.1 localhost join.test\n' >/run/hosts
mount --bind /run/hosts /etc/hosts
echo 'Filename Type Size Used Priority' >/run/swaps
mount --bind /run/swaps /proc/swaps
echo 1 >/proc/sys/net/ipv4/ip_forward
echo Worker-1 >/proc/sys/kernel/hostname
mkdir /run/containerd /run/bin
for program in kubeadm kubelet; do ln -s "$bin/$program" /run/bin; done
export PATH="/run/bin:$PATH"
runtime() {
	"$bin/fakecri" "unix://$1" >/dev/null 2>&1 &
	until [ -S "$1" ]; do sleep 0.05; done
}
runtime /run/containerd/containerd.sock
eval "$fault"
touch /run/before # nothing on this machine is to be newer than this file
mkdir /run/tmp
TMPDIR=/run/tmp "$@" && code=0 || code=$?
find /etc/kubernetes /var/lib/kubelet /run -newer /run/before ! -path /run ! -path /run/before ! -path /run/tmp | sed 's/^/changed: /'
exit $code
