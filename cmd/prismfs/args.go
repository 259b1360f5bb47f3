package main

import (
	"strings"
)

// flagDef is one flag of a command. Short flags may be bundled (-nv) and a
// value may follow directly (-oro) or as the next word; long ones take
// --name=value or --name value.
type flagDef struct {
	short byte   // 0: none
	long  string // "": none
	value string // name of the value in the help text; "": a switch
	help  string // "": accepted, not advertised
}

func (d *flagDef) key() string {
	if d.long != "" {
		return d.long
	}
	return string(d.short)
}

// arguments is a parsed command line.
type arguments struct {
	positional []string
	switches   map[string]bool
	values     map[string][]string
}

func (a *arguments) has(key string) bool { return a.switches[key] }

// last is the value given last, which wins, or "".
func (a *arguments) last(key string) string {
	v := a.values[key]
	if len(v) == 0 {
		return ""
	}
	return v[len(v)-1]
}

// parseArguments accepts flags before, between and after the other words, as
// mount(8) puts them behind; "--" ends them.
func parseArguments(words []string, defs []flagDef) (*arguments, error) {
	a := &arguments{switches: map[string]bool{}, values: map[string][]string{}}
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		switch {
		case word == "--":
			a.positional = append(a.positional, words...)
			return a, nil
		case strings.HasPrefix(word, "--"):
			name, value, hasValue := strings.Cut(word[2:], "=")
			def := findFlag(defs, func(d *flagDef) bool { return d.long == name && name != "" })
			switch {
			case def == nil:
				return nil, usagef("unknown option --%s", name)
			case def.value == "" && hasValue:
				return nil, usagef("option --%s takes no value", name)
			case def.value == "":
				a.switches[def.key()] = true
				continue
			case !hasValue && len(words) == 0:
				return nil, usagef("option --%s needs a value: --%s=%s", name, name, def.value)
			case !hasValue:
				value, words = words[0], words[1:]
			}
			a.values[def.key()] = append(a.values[def.key()], value)
		case len(word) > 1 && word[0] == '-':
			for i := 1; i < len(word); i++ {
				def := findFlag(defs, func(d *flagDef) bool { return d.short == word[i] })
				if def == nil {
					return nil, usagef("unknown option -%c", word[i])
				}
				if def.value == "" {
					a.switches[def.key()] = true
					continue
				}
				value := word[i+1:]
				if value == "" {
					if len(words) == 0 {
						return nil, usagef("option -%c needs a value: -%c %s", word[i], word[i], def.value)
					}
					value, words = words[0], words[1:]
				}
				a.values[def.key()] = append(a.values[def.key()], value)
				break
			}
		default:
			a.positional = append(a.positional, word)
		}
	}
	return a, nil
}

func findFlag(defs []flagDef, match func(*flagDef) bool) *flagDef {
	for i := range defs {
		if match(&defs[i]) {
			return &defs[i]
		}
	}
	return nil
}
