# A machine of a whole cluster: PID 1 of new mount, PID, network, host name and IPC namespaces. Whatever it
# starts, mounts and connects is gone with it. It gets its folder, name and address, the folders of the programs, and
# the cgroup for its pods.
set -eu
dir=$1 name=$2 address=$3 kube=$4 containers=$5 cgroup=$6

mount --make-rprivate /
mount -t proc proc /proc
hostname "$name"
for f in containerd log; do mkdir "$dir/$f"; done
# What kubeadm, kubelet and containerd write to these folders stays in the machine.
mount -t tmpfs -o mode=0700 tmpfs "$dir/fs"
for d in etc var opt usr/libexec; do
	mkdir -p "/$d" "$dir/fs/$d/upper" "$dir/fs/$d/work"
	chmod 755 "$dir/fs/$d/upper"
	mount -t overlay -o "lowerdir=/$d,upperdir=$dir/fs/$d/upper,workdir=$dir/fs/$d/work" overlay "/$d"
done
mount -t tmpfs -o mode=0755 tmpfs /run
rm -rf /etc/kubernetes /etc/cni /var/lib/kubelet /var/lib/etcd
mkdir -p /var/lib/containerd /var/lib/etcd /var/log /etc/containerd
mount --bind "$dir/containerd" /var/lib/containerd
mount --bind "$dir/log" /var/log
mount -t tmpfs -o mode=0700 tmpfs /var/lib/etcd # etcd waits for each write
echo "127.0.0.1 localhost
$address $name" >/etc/hosts
# The kernel's 128 inotify instances are too few for the kubelets of several tests. All machines share the limit.
limit=/proc/sys/fs/inotify/max_user_instances
[ "$(cat $limit)" -ge 1024 ] || echo 1024 >$limit
# The kubelet sets these for the whole machine: it gets copies.
for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	copy=/run/$(basename $f)
	cat "/proc/sys/$f" >"$copy"
	mount --bind "$copy" "/proc/sys/$f"
done
# The kubelet wants its cgroup in each hierarchy of cgroup v1, or with all controllers of cgroup v2.
for root in /sys/fs/cgroup /sys/fs/cgroup/*/; do
	path=$root
	[ -e "$root/cgroup.procs" ] || continue
	for d in ${cgroup%/*} ${cgroup##*/}; do
		if [ -e "$path/cgroup.controllers" ]; then
			for controller in $(cat "$path/cgroup.controllers"); do echo "+$controller"; done >"$path/cgroup.subtree_control"
		fi
		mkdir -p "$path/$d"
		for f in cpuset.cpus cpuset.mems; do
			if [ -e "$path/$d/$f" ] && [ ! -e "$path/$d/cgroup.controllers" ]; then cat "$path/$f" >"$path/$d/$f"; fi
		done
		path=$path/$d
	done
done
# Without systemctl, kubeadm leaves the services of this machine alone.
if systemctl=$(command -v systemctl); then mount --bind /dev/null "$systemctl"; fi
export PATH="$kube:$containers:$PATH" HOME="$dir"
unset KUBECONFIG
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip address add "$address/24" dev eth0
ip link set eth0 up
ip route add default via "${address%.*}.1"

cp "$dir/containerd.toml" /etc/containerd/config.toml
containerd >/var/log/containerd.log 2>&1 &

# What systemd does with kubeadm's unit: the kubelet runs once its flags are there, and again whenever it ends, unless
# it is switched off.
flags=/var/lib/kubelet/kubeadm-flags.env
while :; do
	until grep -qs '"$' $flags && [ ! -e /run/kubelet.off ]; do sleep 0.05; done
	. $flags
	kubelet $KUBELET_KUBEADM_ARGS --cgroup-root="/$cgroup" --config=/var/lib/kubelet/config.yaml \
		--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
		--kubeconfig=/etc/kubernetes/kubelet.conf >>/var/log/kubelet.log 2>&1 &
	echo $! >/run/kubelet.pid
	wait $! || :
	sleep 1
done
