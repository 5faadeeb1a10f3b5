package kube

import "time"

// SetAge sets how long all callers share one look at the cluster.
func (j *Joins) SetAge(age time.Duration) { j.age = age }
