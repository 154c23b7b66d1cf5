/* What systemd does to a user's jobs at the last logout (logind.conf(5), loginctl(1)). */
#ifndef BASE_LOGOUT_H
#define BASE_LOGOUT_H

#include <stdbool.h>
#include <sys/types.h>

enum logout {
	LOGOUT_HARMLESS, /* no systemd, a runtime directory of another kind, or the user lingers */
	LOGOUT_REMOVES,	 /* the runtime directory is removed */
	LOGOUT_KILLS,	 /* ... and processes are killed (KillUserProcesses=yes) */
};

/* `root`: "", or the directory that is looked into instead of /, for tests. `runtime`: XDG_RUNTIME_DIR, may
 * be NULL. What cannot be read counts as harmless. */
enum logout logout_look(const char *root, const char *runtime, uid_t uid, const char *user);
/* The same for this process. */
enum logout logout_of_user(void);
/* A sentence with the remedy; "" if it is harmless. */
const char *logout_sentence(enum logout logout);

#endif
