//go:build cgo

package main

// #include <stdlib.h>
// static int successor(int n) { int *p = malloc(sizeof(int)); *p = n + 1; n = *p; free(p); return n; }
import "C"

func extra(n int) int { return int(C.successor(C.int(n))) }
