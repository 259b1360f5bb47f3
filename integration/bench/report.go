package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const benchTitle = `# Measurements

Written by ` + "`make bench`" + `, newest first. integration/bench/doc.go says how.
`

// prepend puts a section below the title of a file, above the earlier ones.
func prepend(file, section string) error {
	old, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	rest := strings.TrimPrefix(string(old), benchTitle)
	return os.WriteFile(file, []byte(benchTitle+"\n"+strings.TrimSuffix(section, "\n")+"\n"+rest), 0o644)
}

// collect gives one figure of each round that went well.
func collect[T any](samples []sample, f func(*sample) T) (v []T) {
	for i := range samples {
		if samples[i].err == nil {
			v = append(v, f(&samples[i]))
		}
	}
	return v
}

// ratio is the median over the rounds of a's speed by b's.
func ratio(a, b []sample) float64 {
	var v []float64
	for i := range min(len(a), len(b)) {
		if a[i].err == nil && b[i].err == nil && b[i].perSecond() > 0 {
			v = append(v, a[i].perSecond()/b[i].perSecond())
		}
	}
	return median(v)
}

func perOp(f func(*sample) float64) func(*sample) float64 {
	return func(s *sample) float64 { return f(s) / float64(max(s.ops, 1)) }
}

func (b *bench) report() string {
	var w strings.Builder
	fmt.Fprintf(&w, "## %s, %s\n\n", b.began.UTC().Format("2006-01-02 15:04"), b.revision())
	b.describe(&w)
	b.speeds(&w)
	b.costs(&w)
	b.requests(&w)
	return w.String()
}

func output(dir, name string, args ...string) string {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, _ := cmd.Output()
	return strings.TrimSpace(string(out))
}

func (b *bench) revision() string {
	rev := output(b.root, "git", "rev-parse", "--short", "HEAD")
	if output(b.root, "git", "status", "--porcelain", "--untracked-files=no") != "" {
		rev += " with changes"
	}
	return rev
}

func (b *bench) describe(w *strings.Builder) {
	var uts unix.Utsname
	unix.Uname(&uts)
	model := "unknown"
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(cpuinfo)) {
		if strings.HasPrefix(line, "model name") {
			_, v, _ := strings.Cut(line, ":")
			model = strings.TrimSpace(v)
			break
		}
	}
	var info unix.Sysinfo_t
	unix.Sysinfo(&info)
	load, _ := os.ReadFile("/proc/loadavg")
	gofuse := "?"
	if bi, ok := debug.ReadBuildInfo(); ok {
		for _, d := range bi.Deps {
			if d.Path == "github.com/hanwen/go-fuse/v2" {
				gofuse = d.Version
			}
		}
	}
	if gofuse == "?" {
		gofuse = output("", "go", "list", "-m", "-f", "{{.Version}}", "github.com/hanwen/go-fuse/v2")
	}
	fmt.Fprintf(w, "%d x %s, %.0f GiB; Linux %s; %s, go-fuse %s; GOMAXPROCS not set, so %d for loopback; prismfs chooses its own.\n",
		runtime.NumCPU(), model, float64(info.Totalram)*float64(info.Unit)/(1<<30), unix.ByteSliceToString(uts.Release[:]), runtime.Version(), gofuse, runtime.NumCPU())
	for _, s := range b.sites {
		if c, ok := s.c.(*prismfs); ok {
			options := c.options
			if options == "" {
				options = "default options"
			}
			fmt.Fprintf(w, "%s: FUSE over %s, %s. ", c.label, c.transport, options)
		}
	}
	fmt.Fprintf(w, "Medians of %d interleaved rounds in %.0f s; load averages at the end %s.\n\n",
		b.rounds, time.Since(b.began).Seconds(), strings.Join(strings.Fields(string(load))[:3], ", "))
}

func (b *bench) names() (names []string) {
	for _, s := range b.sites {
		names = append(names, s.c.name())
	}
	return names
}

// ours are the contenders that are prismfs, however mounted.
func (b *bench) ours() (names []string) {
	for _, s := range b.sites {
		if _, ok := s.c.(*prismfs); ok {
			names = append(names, s.c.name())
		}
	}
	return names
}

func line(w *strings.Builder, cells []string) {
	fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
}

func header(w *strings.Builder, cells []string) {
	line(w, cells)
	rule := make([]string, len(cells))
	for i := range rule {
		rule[i] = "---:"
	}
	rule[0] = "---"
	line(w, rule)
}

func (b *bench) speeds(w *strings.Builder) {
	names := b.names()
	has := func(n string) bool { return slices.Contains(names, n) }
	head := append([]string{"operations a second"}, names...)
	for _, n := range b.ours() {
		if has("ext4") {
			head = append(head, n+" / ext4")
		}
		if has("loopback") {
			head = append(head, n+" / loopback")
		}
	}
	if has("ext4") {
		head = append(head, "aim / ext4")
	}
	header(w, head)
	for i := range b.rows {
		r := &b.rows[i]
		res := b.results[r.id]
		cells := []string{r.label}
		for _, n := range names {
			cells = append(cells, r.speed(res[n]))
		}
		for _, n := range b.ours() {
			if has("ext4") {
				cells = append(cells, times(ratio(res[n], res["ext4"]), r.target))
			}
			if has("loopback") {
				cells = append(cells, times(ratio(res[n], res["loopback"]), 1))
			}
		}
		if has("ext4") {
			cells = append(cells, aim(r.target))
		}
		line(w, cells)
	}
	fmt.Fprint(w, "\nBold: below the aim, which against loopback is 1. Loopback's reads and writes do not reach its\ndaemon where the kernel offers FUSE passthrough: they are ext4's.\n\n")
}

func (r *row) speed(samples []sample) string {
	rates := collect(samples, (*sample).perSecond)
	if len(rates) == 0 {
		return "failed"
	}
	note := ""
	if len(rates) < len(samples) {
		note = fmt.Sprintf(" (%d failed)", len(samples)-len(rates))
	}
	switch r.unit {
	case mebibytes:
		return fmt.Sprintf("%.0f MiB/s", median(rates)) + note
	case seconds:
		took := collect(samples, func(s *sample) float64 { return s.took.Seconds() })
		return fmt.Sprintf("%.2f s", median(took)) + note
	}
	return fmt.Sprintf("%.0f", median(rates)) + note
}

func times(v, aim float64) string {
	switch {
	case v == 0:
		return "-"
	case v < aim:
		return fmt.Sprintf("**%.2f**", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func aim(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", v)
}

// costs is what an operation takes besides time.
func (b *bench) costs(w *strings.Builder) {
	names := b.names()
	head := []string{"an operation costs"}
	var daemons []string
	for _, n := range names {
		if n != "ext4" {
			daemons = append(daemons, n)
		}
	}
	add := func(what string, of []string) {
		for _, n := range of {
			head = append(head, n+": "+what)
		}
	}
	add("requests", b.ours())
	add("daemon CPU µs", daemons)
	add("flushes", names)
	add("bytes to disk", names)
	add("peak MiB", daemons)
	add("mount ms", names)
	header(w, head)
	for i := range b.rows {
		r := &b.rows[i]
		res := b.results[r.id]
		cells := []string{r.label}
		figure := func(of []string, format string, f func(*sample) float64) {
			for _, n := range of {
				v := collect(res[n], f)
				if len(v) == 0 || median(v) == 0 {
					cells = append(cells, "-")
					continue
				}
				cells = append(cells, fmt.Sprintf(format, median(v)))
			}
		}
		figure(b.ours(), "%.2f", perOp(func(s *sample) float64 { return float64(total(s.requests)) }))
		figure(daemons, "%.1f", perOp(func(s *sample) float64 { return float64(s.cpu.Nanoseconds()) / 1000 }))
		figure(names, "%.3f", perOp(func(s *sample) float64 { return float64(s.device.flushes) }))
		figure(names, "%.0f", perOp(func(s *sample) float64 { return float64(s.device.writtenBytes) }))
		figure(daemons, "%.0f", func(s *sample) float64 { return float64(s.rss) / (1 << 20) })
		figure(names, "%.1f", func(s *sample) float64 { return s.mounting.Seconds() * 1000 })
		line(w, cells)
	}
	fmt.Fprintln(w)
}

func total(m map[string]int64) (n int64) {
	for _, v := range m {
		n += v
	}
	return n
}

// requests says of what kind they were, from the last round.
func (b *bench) requests(w *strings.Builder) {
	ours := b.ours()
	if len(ours) == 0 {
		return
	}
	header(w, []string{"requests per operation (last round, " + ours[0] + ")", ""})
	for i := range b.rows {
		r := &b.rows[i]
		res := b.results[r.id][ours[0]]
		if len(res) > 0 {
			line(w, []string{r.label, describeRequests(&res[len(res)-1])})
		}
	}
	fmt.Fprintln(w)
}

func describeRequests(s *sample) string {
	type kind struct {
		name string
		n    float64
	}
	var kinds []kind
	for name, n := range s.requests {
		if v := float64(n) / float64(max(s.ops, 1)); v >= 0.005 {
			kinds = append(kinds, kind{name, v})
		}
	}
	slices.SortFunc(kinds, func(a, b kind) int {
		if a.n != b.n {
			if a.n > b.n {
				return -1
			}
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	var words []string
	for _, k := range kinds {
		words = append(words, fmt.Sprintf("%s %.2f", k.name, k.n))
	}
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, ", ")
}
