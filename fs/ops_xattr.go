package fs

import (
	"bytes"

	"prismfs/metadata"
)

var (
	userPrefix     = []byte("user.")
	trustedPrefix  = []byte("trusted.")
	securityPrefix = []byte("security.")
	aclAccess      = []byte("system.posix_acl_access")
	aclDefault     = []byte("system.posix_acl_default")
)

// checkXattrName knows the namespaces of xattr(7). Who may use which of them,
// and on what, has been checked by the kernel.
func (d *Dispatcher) checkXattrName(name []byte) error {
	if len(name) > nameMax {
		return metadata.ErrRange
	}
	for _, p := range [...][]byte{userPrefix, trustedPrefix, securityPrefix} {
		if bytes.HasPrefix(name, p) {
			if len(name) == len(p) {
				return metadata.ErrInvalid
			}
			return nil
		}
	}
	if d.o.ACL && (bytes.Equal(name, aclAccess) || bytes.Equal(name, aclDefault)) {
		return nil
	}
	return metadata.ErrUnsupported
}

// xattrName takes an attribute's name out of a request and hands on what
// follows.
func (d *Dispatcher) xattrName(data []byte) (name, rest []byte, err error) {
	if d.o.NoXattr {
		return nil, nil, errNoSys
	}
	name, rest, ok := CutName(data)
	if !ok || len(name) == 0 {
		return nil, nil, metadata.ErrInvalid
	}
	return name, rest, d.checkXattrName(name)
}

// putXattr answers GETXATTR and LISTXATTR: with the length if the caller asked
// with a size of 0, else with the bytes.
func (c *call) putXattr(v []byte) (int, error) {
	switch size := le.Uint32(c.r.Op()); {
	case size == 0: // fuse_getxattr_out
		le.PutUint32(c.r.Out, uint32(len(v)))
		le.PutUint32(c.r.Out[4:], 0)
		return 8, nil
	case uint64(len(v)) > uint64(size):
		return 0, metadata.ErrRange
	}
	return copy(c.r.Out, v), nil
}

func (d *Dispatcher) opGetxattr(c *call, w metadata.Wait) (int, error) {
	name, _, err := d.xattrName(c.r.Data)
	if err != nil {
		return 0, err
	}
	v, err := d.st.Getxattr(w, metadata.Ino(c.r.Node()), name)
	if err != nil {
		return 0, err
	}
	return c.putXattr(v)
}

// opListxattr shows trusted attributes to administrators only, as xattr(7) has
// it. The request doesn't say who asks: with FUSE_ALLOW_IDMAP the kernel gives
// ids only where something is made.
func (d *Dispatcher) opListxattr(c *call, w metadata.Wait) (int, error) {
	if d.o.NoXattr {
		return 0, errNoSys
	}
	v, err := d.st.Listxattr(w, metadata.Ino(c.r.Node()))
	if err != nil {
		return 0, err
	}
	if bytes.Contains(v, trustedPrefix) && !callerOf(c.r).has(capSysAdmin) {
		v = withoutTrusted(v)
	}
	return c.putXattr(v)
}

// withoutTrusted copies a list of NUL-terminated names.
func withoutTrusted(list []byte) []byte {
	kept := make([]byte, 0, len(list))
	for len(list) > 0 {
		name, rest, ok := CutName(list)
		if !ok {
			break
		}
		if !bytes.HasPrefix(name, trustedPrefix) {
			kept = append(kept, list[:len(name)+1]...)
		}
		list = rest
	}
	return kept
}

// setxattrACLKillSgid is a bit of fuse_setxattr_in.setxattr_flags.
const setxattrACLKillSgid = 1 << 0

// opSetxattr expects the struct of FUSE_SETXATTR_EXT.
func (d *Dispatcher) opSetxattr(c *call, w metadata.Wait) (int, error) {
	name, rest, err := d.xattrName(c.r.Data)
	if err != nil {
		return 0, err
	}
	in := c.r.Op()
	value := rest[:le.Uint32(in)]
	flags := le.Uint32(in[4:]) & (metadata.XattrCreate | metadata.XattrReplace)
	if le.Uint32(in[8:])&setxattrACLKillSgid != 0 {
		flags |= metadata.XattrKillSgid
	}
	return 0, d.st.Setxattr(w, metadata.Ino(c.r.Node()), name, value, flags)
}

func (d *Dispatcher) opRemovexattr(c *call, w metadata.Wait) (int, error) {
	name, _, err := d.xattrName(c.r.Data)
	if err != nil {
		return 0, err
	}
	return 0, d.st.Removexattr(w, metadata.Ino(c.r.Node()), name)
}
