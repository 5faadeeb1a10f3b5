# A machine of its own: PID 1 of new mount and PID namespaces, so that what kubeadm and the
# kubelet write is gone with it, and nothing that runs in it stays. It gets the folder of the
# programs, a folder for sockets and logs, and kubeadm's arguments, or the kubelet's if it is to be
# alone, or a command if it is to boot with that.
set -eu
bin=$1 dir=$2
shift 2

mount --make-rprivate /
mount -t proc proc /proc
for d in /etc/kubernetes /var/lib/kubelet /var/log /usr/libexec/kubernetes; do
	mkdir -p "$d"
	mount -t tmpfs -o mode=0755 tmpfs "$d"
done
# The kernel's 128 inotify instances are too few for the kubelets of several tests. All machines share the limit.
limit=/proc/sys/fs/inotify/max_user_instances
[ "$(cat $limit)" -ge 1024 ] || echo 1024 >$limit
# The kubelet sets these for the whole machine: it gets copies.
for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	copy=/var/log/$(basename $f)
	cat "/proc/sys/$f" >"$copy"
	mount --bind "$copy" "/proc/sys/$f"
done
export HOME="$dir"
unset KUBECONFIG

# Without systemctl in its PATH kubeadm leaves the machine's services alone.
kubeadm() { PATH=$bin "$bin/kubeadm" "$@"; }

if [ -z "${KUBEJOIN_KUBELET-}" ]; then
	kubeadm "$@"
	exit
fi

"$bin/fakecri" "unix://$dir/cri.sock" >"$dir/fakecri.log" 2>&1 &

if [ "$KUBEJOIN_KUBELET" = alone ]; then
	cp "$dir/kubelet.yaml" /var/lib/kubelet/config.yaml
	cp "$dir/bootstrap.conf" /etc/kubernetes/bootstrap-kubelet.conf
	if [ -s "$dir/client.key" ]; then # a kubelet that does not rotate its key takes it from there
		install -D -m 0600 "$dir/client.key" /var/lib/kubelet/pki/kubelet-client.key.tmp
	fi
	echo "KUBELET_KUBEADM_ARGS=\"$*\"" >/var/lib/kubelet/kubeadm-flags.env
fi

if [ "$KUBEJOIN_KUBELET" = boot ] && [ -e "$dir/kubelet.yaml" ]; then
	cp "$dir/kubelet.yaml" /var/lib/kubelet/config.yaml
	cp "$dir/kubelet.flags" /var/lib/kubelet/kubeadm-flags.env
fi

# What systemd does with kubeadm's unit: the kubelet runs once its flags are there, and again
# whenever it ends, unless it is switched off.
(
	flags=/var/lib/kubelet/kubeadm-flags.env
	while :; do
		until grep -q '"$' $flags 2>/dev/null && [ ! -e "$dir/kubelet.off" ]; do sleep 0.05; done
		. $flags
		"$bin/kubelet" $KUBELET_KUBEADM_ARGS --config=/var/lib/kubelet/config.yaml \
			--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
			--kubeconfig=/etc/kubernetes/kubelet.conf || :
		sleep 1
	done
) >"$dir/kubelet.log" 2>&1 &

if [ "$KUBEJOIN_KUBELET" = alone ]; then
	wait
	exit
fi

if [ -e "$dir/kubelet.conf" ]; then # the machine has its credential before it joins
	install -m 0600 "$dir/kubelet.conf" /etc/kubernetes/kubelet.conf
fi

code=0
if [ "$KUBEJOIN_KUBELET" = boot ]; then
	env PATH="$dir/bin:$PATH" "$@" >"$dir/kubeadm.log" 2>&1 </dev/null || code=$?
else
	kubeadm "$@" --cri-socket "unix://$dir/cri.sock" --patches "$dir/patches" \
		--ignore-preflight-errors=all >"$dir/kubeadm.log" 2>&1 || code=$?
fi
echo $code >"$dir/kubeadm.exit.new"
mv "$dir/kubeadm.exit.new" "$dir/kubeadm.exit"
wait # the machine stays on, whether it has joined or not
