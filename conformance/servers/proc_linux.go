package servers

import "syscall"

// dieWithParent makes the kernel kill the server if the test binary dies without its cleanups: on a timeout
// or a kill.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
