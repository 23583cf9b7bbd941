/** @file process.h
 * Processes as /proc shows them.
 */
#ifndef RP_BPF_PROCESS_H
#define RP_BPF_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "recvpool/status.h"

/** What identifies a process and its place in the tree. */
struct rp_process {
  pid_t pid, parent;
  pid_t inner_pid;      /**< in its own namespace; pid where it has none of its own */
  pid_t leader;         /**< pid, or the process that it is a thread of */
  uint64_t start_ticks; /**< since boot; with the pid it names one process for good */
  char name[16];        /**< of its main thread */
  bool kernel_thread;
  bool seccomp_filter;
  bool zombie; /**< no thread of it is left */
};

/** Reads one. RP_ERROR_NOT_FOUND: there is none with that id; RP_ERROR_IO: no more files can be opened, with
 * errno set. */
rp_status rp_process_read(pid_t pid, struct rp_process *out);
/** Of whom to ask /proc what a process has mapped, its environment and its root: itself or, where its main
 * thread has ended before the others, one of those. */
pid_t rp_process_speaker(pid_t pid);
/** Whether it is the process that was read, still running. */
bool rp_process_is_alive(const struct rp_process *process);
/** Lists all processes, sorted by id; RP_ERROR_IO (with errno set) or RP_ERROR_NO_MEMORY. Release with free.
 */
rp_status rp_process_list(struct rp_process **out, size_t *count);
/** Marks in `selected` (count flags) every descendant of those marked already. */
void rp_process_select_tree(const struct rp_process *list, size_t count, bool *selected);

#endif
