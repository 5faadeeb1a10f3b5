// Package client calls the HTTPS API of kubejoin, with the types of package server/api. It imports nothing of Kubernetes.
package client
