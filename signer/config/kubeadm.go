package config

// Kubeadm is a file with the signers of [Default], and one signer for each certificate of a control plane that kubeadm
// makes. The name after the slash is the name of the certificate in 'kubeadm certs check-expiration'. No rule approves
// their requests, so only users who may sign for them get a certificate.
const Kubeadm = Default + `
# The certificates of control planes, for hosts that have no CA key: docs/credentials.md. Each of them can become
# cluster-admin, so give nobody but operators the permission to sign for kubeadm.kubejoin.io/*.
# CA files are relative to the folder of this file. Signers without one use the cluster's CA.
# Narrow dns and ips to the names and addresses of your control planes and of the API server's Service.
- name: kubeadm.kubejoin.io/apiserver
  duration: {default: 8760h}
  usages: [digital signature, key encipherment, server auth]
  subject: {commonNames: [kube-apiserver]}
  names:
    dns: ["**"]
    ips: [0.0.0.0/0, "::/0"]
- name: kubeadm.kubejoin.io/apiserver-kubelet-client
  duration: {default: 8760h}
  usages: [digital signature, key encipherment, client auth]
  subject: {commonNames: [kube-apiserver-kubelet-client]}
- name: kubeadm.kubejoin.io/front-proxy-client
  ca: {certFile: front-proxy-ca.crt, keyFile: front-proxy-ca.key}
  duration: {default: 8760h}
  usages: [digital signature, key encipherment, client auth]
  subject: {commonNames: [front-proxy-client]}
- name: kubeadm.kubejoin.io/etcd-server
  ca: {certFile: etcd/ca.crt, keyFile: etcd/ca.key}
  duration: {default: 8760h}
  usages: [digital signature, key encipherment, server auth, client auth]
  subject: {commonNames: ["*"]}
  names:
    dns: ["**"]
    ips: [0.0.0.0/0, "::/0"]
- name: kubeadm.kubejoin.io/etcd-peer
  ca: {certFile: etcd/ca.crt, keyFile: etcd/ca.key}
  duration: {default: 8760h}
  usages: [digital signature, key encipherment, server auth, client auth]
  subject: {commonNames: ["*"]}
  names:
    dns: ["**"]
    ips: [0.0.0.0/0, "::/0"]
- name: kubeadm.kubejoin.io/etcd-healthcheck-client
  ca: {certFile: etcd/ca.crt, keyFile: etcd/ca.key}
  duration: {default: 8760h}
  usages: [digital signature, key encipherment, client auth]
  subject: {commonNames: [kube-etcd-healthcheck-client]}
- name: kubeadm.kubejoin.io/apiserver-etcd-client
  ca: {certFile: etcd/ca.crt, keyFile: etcd/ca.key}
  duration: {default: 8760h}
  usages: [digital signature, key encipherment, client auth]
  subject: {commonNames: [kube-apiserver-etcd-client]}
- name: kubeadm.kubejoin.io/admin.conf
  duration: {default: 8760h}
  usages: [digital signature, key encipherment, client auth]
  subject: {commonNames: [kubernetes-admin], organizations: ["kubeadm:cluster-admins"]}
# The only signer that issues group system:masters, and only to the user kubernetes-super-admin. kubeadm init needs it
# once. Remove the signer when the first control plane runs.
- name: kubeadm.kubejoin.io/super-admin.conf
  duration: {default: 8760h}
  usages: [digital signature, key encipherment, client auth]
  subject: {commonNames: [kubernetes-super-admin], organizations: ["system:masters"]}
- name: kubeadm.kubejoin.io/controller-manager.conf
  duration: {default: 8760h}
  usages: [digital signature, key encipherment, client auth]
  subject: {commonNames: ["system:kube-controller-manager"]}
- name: kubeadm.kubejoin.io/scheduler.conf
  duration: {default: 8760h}
  usages: [digital signature, key encipherment, client auth]
  subject: {commonNames: ["system:kube-scheduler"]}
- name: kubeadm.kubejoin.io/kubelet.conf
  duration: {default: 8760h}
  usages: [digital signature, key encipherment, client auth]
  subject: {commonNames: ["system:node:*"], organizations: ["system:nodes"]}
`
