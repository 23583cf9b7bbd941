/* A queue of probes to be taken out, and the thread that does it. Owns both. */
#include "bpf/detacher.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct job {
  struct rp_links links;
  size_t tag;
  struct job *next;
};

struct rp_detacher {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  struct job *waiting, **last; /* lock; in the order of coming */
  struct job *done;            /* lock */
  bool stop;                   /* lock */
};

static void *run(void *argument) {
  struct rp_detacher *detacher = argument;
  pthread_mutex_lock(&detacher->lock);
  for (;;) {
    struct job *job = detacher->waiting;
    if (!job && detacher->stop) break;
    if (!job) {
      pthread_cond_wait(&detacher->wake, &detacher->lock);
      continue;
    }
    detacher->waiting = job->next;
    if (!detacher->waiting) detacher->last = &detacher->waiting;
    pthread_mutex_unlock(&detacher->lock);
    rp_links_detach(&job->links);
    pthread_mutex_lock(&detacher->lock);
    job->next = detacher->done;
    detacher->done = job;
  }
  pthread_mutex_unlock(&detacher->lock);
  return NULL;
}

struct rp_detacher *rp_detacher_create(void) {
  struct rp_detacher *detacher = calloc(1, sizeof *detacher);
  sigset_t all, before;
  if (!detacher) return NULL;
  detacher->last = &detacher->waiting;
  pthread_mutex_init(&detacher->lock, NULL);
  pthread_cond_init(&detacher->wake, NULL);
  sigfillset(&all); /* signals are for the thread that observes */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&detacher->thread, NULL, run, detacher);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!failed) {
    (void)pthread_setname_np(detacher->thread, "rp_detacher");
    return detacher;
  }
  pthread_cond_destroy(&detacher->wake);
  pthread_mutex_destroy(&detacher->lock);
  free(detacher);
  return NULL;
}

bool rp_detacher_take(struct rp_detacher *detacher, struct rp_links *links, size_t tag) {
  struct job *job = detacher ? malloc(sizeof *job) : NULL;
  if (!job) {
    rp_links_detach(links);
    return false;
  }
  *job = (struct job){.links = *links, .tag = tag};
  *links = (struct rp_links){0};
  pthread_mutex_lock(&detacher->lock);
  *detacher->last = job;
  detacher->last = &job->next;
  pthread_cond_signal(&detacher->wake);
  pthread_mutex_unlock(&detacher->lock);
  return true;
}

bool rp_detacher_done(struct rp_detacher *detacher, size_t *tag) {
  if (!detacher) return false;
  pthread_mutex_lock(&detacher->lock);
  struct job *job = detacher->done;
  if (job) detacher->done = job->next;
  pthread_mutex_unlock(&detacher->lock);
  if (!job) return false;
  *tag = job->tag;
  free(job);
  return true;
}

void rp_detacher_destroy(struct rp_detacher *detacher) {
  size_t tag;
  if (!detacher) return;
  pthread_mutex_lock(&detacher->lock);
  detacher->stop = true;
  pthread_cond_signal(&detacher->wake);
  pthread_mutex_unlock(&detacher->lock);
  pthread_join(detacher->thread, NULL);
  while (rp_detacher_done(detacher, &tag))
    continue;
  pthread_cond_destroy(&detacher->wake);
  pthread_mutex_destroy(&detacher->lock);
  free(detacher);
}
