/*
 * Lines: what connects a process that has moved to another host with the stub that it left
 * (supervisor/stub.h).
 *
 * Every keeper of a job that a process has left tells pbeamd that it expects channels with the job's uuid as
 * their cookie. The guest keeper on the other host connects to it. What befalls the process there goes one
 * way (it ended, stopped, went on) and the stub does the same; signals that reach the stub go the other way.
 * So does whose child the stub is, which the process is told if it is another than it knew of.
 *
 * At each end there is a process of its own, a child of the keeper, that may block; it talks with the keeper
 * over a seqpacket pair, struct line_word. The guest's end connects again and again until what it has to tell
 * has been confirmed; it outlives its keeper for that. It may outlive a rollback of the whole job as well: so
 * it says of which incarnation of the job it is (job->incarnation), and no other's stub listens to it.
 */
#ifndef SCIP_JOB_LINE_H
#define SCIP_JOB_LINE_H

#include "proto/daemon.pb-c.h"
#include "scip/job/job.h"

enum line_word_type {
	LINE_WORD_HELLO = 1, /* stub's end -> keeper: which vpid it is for */
	LINE_WORD_CONSOLE,   /* home's end -> keeper: it is the console's */
	LINE_WORD_STATUS,    /* keeper -> guest's end: value is a wait status */
	LINE_WORD_SIGNAL,    /* keeper -> stub's end, guest's end -> keeper: value is a signal; stub's end ->
				keeper: it has not arrived */
	LINE_WORD_SIGNALLED, /* keeper -> guest's end, stub's end -> keeper: the process has the oldest of
				them */
	LINE_WORD_PARENT,    /* keeper -> stub's end: the stub may be another's child now */
	LINE_WORD_MOVED,     /* keeper -> guest's end: it has moved on, there is nothing more to tell */
};
struct line_word {
	uint32_t type;
	int32_t vpid, value, from;
	pid_t stub; /* its real pid; 0: not known */
};

/* From now on channels for this job are expected. No effect if they are already. */
must_check int lines_expect(struct job *job, struct err *err);
/* `vpid` was made as `rpid`, and will run if all goes well: what befalls it then is told once it has a line.
 * One that was made ahead and given up is forgotten with the next. */
void lines_await(struct job *job, struct vpid vpid, pid_t rpid);
/* `vpid`, a child of ours, has a stub on that host. */
must_check int lines_to_stub(struct job *job, struct vpid vpid, pid_t rpid, const char *host,
			     struct err *err);
/* A process of ours was rolled back here: it is another process now, and the end of the old one is not to be
 * told. */
void lines_renew(struct job *job, struct vpid vpid, pid_t rpid);
/* All of the job here is the part of a cut by now, held, or gone, by the rollback `incarnation` (its uuid):
 * what was under way on the lines of its stubs is not of now, and those of it whose stub is in another part
 * have lines of their own, and nobody else has. The second time it has no effect. */
void lines_reset(struct job *job, const char *incarnation, const Pbeam__CutImageName *part);
/* The host where a process of ours has its stub, "" for none. */
const char *lines_stub_host(const struct job *job, struct vpid vpid);
/* A child of the keeper ended, stopped or went on. While a coordinator is at work this is kept. */
void lines_child(struct job *job, pid_t rpid, int status);
/* A coordinator has ended, and none is at work; `moved` (0: nobody) has left this host. */
void lines_settle(struct job *job, struct vpid moved);
/* A stub of ours got a signal. */
void lines_signal(struct job *job, const Pbeam__RemoteSignal *signal);
/* In a guest keeper: starts and ends the guest's end of its console (remote_console.h). No effect where no
 * stream leads home. */
must_check int lines_start_console(struct job *job, struct err *err);
void lines_stop_console(struct job *job);
/* In a coordinator: what was elsewhere is at home again, nothing else may read from its console. vpid 0: all
 * that call from elsewhere; those that still are there call again. */
void lines_end_consoles(const struct job *job, struct vpid vpid);
/* The parent of this stub of ours may have ended. */
void lines_orphan(struct job *job, struct vpid vpid);
/* True if the child was one of the processes here. */
bool lines_reaped(struct job *job, pid_t pid);
/* How many signals for processes elsewhere have not reached them, as far as we know. */
int lines_under_way(const struct job *job);
/* In the child of a guest keeper that is to talk with a stub (line_guest.c), and at the other end
 * (line_stub.c). They never return. */
_Noreturn void line_guest_main(const struct job *job, struct vpid vpid, const char *host, int keeper);
_Noreturn void line_stub_main(const struct job *job, int channel, int keeper);
_Noreturn void line_expect_main(const struct job *job, int keeper);

#endif
