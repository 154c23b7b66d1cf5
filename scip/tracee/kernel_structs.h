/* Structs of the kernel's interface that libc's headers lack or declare otherwise. */
#ifndef SCIP_TRACEE_KERNEL_STRUCTS_H
#define SCIP_TRACEE_KERNEL_STRUCTS_H

#include <stdint.h>

/* struct sigaction of rt_sigaction(2). */
struct kernel_action {
	uint64_t handler, flags, restorer, mask;
};

/* struct sched_attr, first version. */
struct kernel_scheduling {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

/* struct ptrace_rseq_configuration (5.13). */
struct kernel_rseq {
	uint64_t address;
	uint32_t size, signature, flags, pad;
};
#ifndef PTRACE_GET_RSEQ_CONFIGURATION
#define PTRACE_GET_RSEQ_CONFIGURATION 0x420f
#endif

#endif
