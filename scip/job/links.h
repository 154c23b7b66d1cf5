/*
 * Links connect a process that has moved to another host with the stub that it left (supervisor/stub.h).
 *
 * State changes of the process (it ended, stopped, continued) go one way, and the stub does the same. Signals
 * that the stub gets go the other way, and so does the stub's parent, when it differs from the one that the
 * process has. The keeper of a job that a process has left registers with pbeamd for connections with the
 * job's uuid as their cookie, and the guest keeper on the other host connects to it.
 *
 * This is the keeper's part: what is to be sent, until it is known to have arrived. A child of the keeper
 * carries it (link_process.h). A link may outlive a rollback of the whole job: it belongs to an incarnation
 * of the job (job->incarnation), and a stub of another incarnation refuses it.
 */
#ifndef SCIP_JOB_LINKS_H
#define SCIP_JOB_LINKS_H

#include "proto/daemon.pb-c.h"
#include "scip/job/job.h"

/* From now on connections for this job are expected. No effect if they are already. */
must_check int links_expect(struct job *job, struct err *err);
/* `vpid` was made as `rpid`, and will run if all goes well: its state changes are kept until it has a link.
 * One that was made in advance and given up is forgotten with the next. */
void links_await(struct job *job, struct vpid vpid, pid_t rpid);
/* `vpid`, a child of the keeper, has a stub on that host. */
must_check int links_to_stub(struct job *job, struct vpid vpid, pid_t rpid, const char *host,
			     struct err *err);
/* A process was rolled back here: `rpid` is the new one, and the end of the old one is not reported. */
void links_renew(struct job *job, struct vpid vpid, pid_t rpid);
/* All of the job here was rolled back as a part of a cut, or is gone, by the rollback `incarnation` (its
 * uuid). What is under way on the links of its stubs is dropped, and exactly the processes of the part whose
 * stub is in another part have links. Calling it again has no effect. */
void links_reset(struct job *job, const char *incarnation, const Pbeam__CutImageName *part);
/* The host where a process of the keeper has its stub, "" for none. */
const char *links_stub_host(const struct job *job, struct vpid vpid);
/* A child of the keeper ended, stopped or continued. While a coordinator is at work this is kept. */
void links_child(struct job *job, pid_t rpid, int status);
/* A coordinator has ended, and none is at work; `moved` (0: none) has left this host. */
void links_settle(struct job *job, struct vpid moved);
/* A stub here got a signal. */
void links_signal(struct job *job, const Pbeam__RemoteSignal *signal);
/* In a guest keeper: the console of the processes here leads home from now on (remote_console.h). No effect
 * where no stream leads home. */
must_check int links_start_console(struct job *job, struct err *err);
/* Has another process carry the links: what that is made with has changed. */
void links_restart(struct job *job);
/* In a coordinator: `vpid` and what went with it is at home again, and nothing else may read from its
 * console. vpid 0: all parts; those that still are elsewhere connect again. */
void links_end_consoles(const struct job *job, struct vpid vpid);
/* The parent of this stub may have ended. */
void links_orphan(struct job *job, struct vpid vpid);
/* True if the child was the process that carries the links, or was it before. */
bool links_reaped(struct job *job, pid_t pid);
/* The number of signals for processes elsewhere that are not known to have reached them. */
int links_under_way(const struct job *job);

#endif
