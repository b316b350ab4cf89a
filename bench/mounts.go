package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// isMountPoint reports whether dir is the root of a file system other than its
// parent's. A dead FUSE mount counts.
func isMountPoint(dir string) bool {
	var a, b unix.Stat_t
	if err := unix.Stat(dir, &a); err != nil {
		return errors.Is(err, unix.ENOTCONN)
	}
	return unix.Stat(filepath.Dir(dir), &b) == nil && a.Dev != b.Dev
}

// unmount takes the mount at dir away, by force when it is busy or broken. It is no
// error when there is none.
func unmount(dir string) error {
	if !isMountPoint(dir) {
		return nil
	}
	err := unmountOnce(dir, false)
	if err != nil || isMountPoint(dir) {
		forceUnmount(dir)
		if isMountPoint(dir) {
			return fmt.Errorf("unmount %s: still mounted: %w (detach it with: umount -l %s)", dir, err, dir)
		}
	}
	return nil
}

// unmountOnce unmounts as root, or with the helper that FUSE has for others.
func unmountOnce(dir string, lazy bool) error {
	flags, helper := 0, []string{"fusermount3", "-u", dir}
	if lazy {
		flags, helper = unix.MNT_DETACH|unix.MNT_FORCE, []string{"fusermount3", "-u", "-z", dir}
	}
	err := unix.Unmount(dir, flags)
	if errors.Is(err, unix.EPERM) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		return command{args: helper}.run(ctx)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// forceUnmount breaks a FUSE connection and detaches the mount, busy or not.
func forceUnmount(dir string) { _ = unmountOnce(dir, true) } // the caller looks at the outcome

// unmountBelow unmounts whatever is still mounted below dir, innermost first.
func unmountBelow(dir string) error {
	var points []string
	for line := range procLines("/proc/self/mountinfo") {
		if f := strings.Fields(line); len(f) > 4 {
			if p := unescapeMount(f[4]); strings.HasPrefix(p, dir+"/") {
				points = append(points, p)
			}
		}
	}
	slices.Reverse(points)
	var errs []error
	for _, p := range points {
		errs = append(errs, unmount(p))
	}
	return errors.Join(errs...)
}

// unescapeMount undoes the escapes of /proc/self/mountinfo.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// sameDisk reports whether a and b are on one file system.
func sameDisk(a, b string) bool {
	var x, y unix.Stat_t
	return unix.Stat(a, &x) == nil && unix.Stat(b, &y) == nil && x.Dev == y.Dev
}

// procStat reads a daemon's processor time so far and its resident memory.
func procStat(pid int) (cpu time.Duration, rss, anon int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, 0, fmt.Errorf("read the daemon's statistics: %w", err)
	}
	// The name, field 2, may hold anything; what follows its last ')' begins with field 3.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 13 {
		return 0, 0, 0, fmt.Errorf("read the daemon's statistics: %q is too short", b)
	}
	var utime, stime int64
	if _, err := fmt.Sscan(f[11]+" "+f[12], &utime, &stime); err != nil {
		return 0, 0, 0, fmt.Errorf("read the daemon's statistics: %w", err)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux that Go runs on
	for line := range procLines(fmt.Sprintf("/proc/%d/status", pid)) {
		var kib int64
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			_, _ = fmt.Sscan(v, &kib) // a line of another form leaves 0
			rss = kib << 10
		} else if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			_, _ = fmt.Sscan(v, &kib)
			anon = kib << 10
		}
	}
	return time.Duration(utime+stime) * tick, rss, anon, nil
}

// quiet waits until the process pid has done next to nothing for a tenth of a
// second, but no longer than limit.
func quiet(ctx context.Context, pid int, limit time.Duration) {
	deadline := time.Now().Add(limit)
	last, _, _, err := procStat(pid)
	for err == nil && time.Now().Before(deadline) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
		var now time.Duration
		if now, _, _, err = procStat(pid); now-last <= 0 {
			return
		}
		last = now
	}
}

// syncDisk writes what the kernel holds for the file system of dir to its disk.
func syncDisk(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Syncfs(int(f.Fd())) // only steadies the measurement
}
