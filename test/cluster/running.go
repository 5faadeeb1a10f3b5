package cluster

import "sync"

// running is the list of started processes.
type running struct {
	mu        sync.Mutex
	processes []*Process
}

func (r *running) add(p *Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes = append(r.processes, p)
}

// killAll kills the processes in reverse order.
func (r *running) killAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.processes) - 1; i >= 0; i-- {
		r.processes[i].Stop(0)
	}
	r.processes = nil
}
