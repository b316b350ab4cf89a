package kv

// TargetNode is the key of a node of the content of a target outside of the mount, which is known by its digest.
func TargetNode(digest []byte) []byte {
	return append(append(make([]byte, 0, 2+len(digest)), 'u', '/'), digest...)
}

// TargetNodePrefix starts all keys made by TargetNode.
func TargetNodePrefix() []byte { return []byte("u/") }

// ParseTargetNode undoes TargetNode; digest is part of k.
func ParseTargetNode(k []byte) (digest []byte, ok bool) {
	if !hasClass(k, 'u') {
		return nil, false
	}
	return k[2:], true
}
