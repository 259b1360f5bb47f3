package fs

// CommitTwice gives a request's entry back to the kernel once more than is
// right, if it came over io_uring. Only from Handle, and before Reply.
func CommitTwice(r *Request) {
	if e, ok := r.owner.(*entry); ok {
		e.q.submit(e, cmdCommitAndFetch)
	}
}
