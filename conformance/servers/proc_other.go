//go:build !linux

package servers

import "syscall"

// dieWithParent has nothing to offer where the kernel has no such signal.
func dieWithParent() *syscall.SysProcAttr { return nil }
