/*
 * captions.h - pictures and what they are called, as a source of pairs for the example programs.
 *
 *     DIR/captions.json    [["animals/birds/crow.png", "crow", ["bird", "animal"]], ...]
 *
 * Each entry is a picture's file below DIR, its title, and its keywords, which may be left out. The caption
 * is "a picture of TITLE, FOLDER" with the folder that the picture lies in, or where that is "captioned", which
 * says nothing, that of its keywords which most pictures have.
 */
#ifndef EX_CAPTIONS_H
#define EX_CAPTIONS_H

#include "flags.h"
#include "orders.h"
#include "source.h"

enum { EX_CAPTION_CONTEXT = 64 }; /* tokens of a caption */

typedef struct ex_captions_options {
    uint64_t seed; /* of shuffling and augmentation; the split does not depend on it */
    int side;      /* of the pictures; a little more than that is kept of each */
    size_t batch;  /* splits have a multiple of this, as far as they have that many pairs */
    int keywords;  /* 1: half of the training captions say a keyword in the place of the folder */
    size_t
        max_bytes; /* of pictures that are kept, the others are decoded whenever they are used; 0: no bound */
    void (*warn)(void *user, const char *line); /* one call for each skipped picture; may be NULL */
    void *user;
    int clip_tokens; /* 1: EX_CLIP_CONTEXT tokens of CLIP; 0: EX_CAPTION_CONTEXT bytes */
} ex_captions_options;

typedef struct ex_pair {
    char *file;  /* below the folder */
    char *title; /* as written in the file */
    char *word;  /* the folder, or what stands for it; "": nothing does */
    char **keywords;
    size_t keyword_count;
    uint64_t group; /* the same for pairs that stay on one side of the split */
    ex_image image; /* pixels NULL: not kept */
} ex_pair;

/* Open for reading. */
typedef struct ex_captions {
    char *folder;
    ex_captions_options options;
    ex_pair *pairs; /* those for validation first, in the order in which they are used */
    size_t count, validation;
    ex_orders *orders;  /* of training */
    size_t skipped;     /* pictures that could not be used */
    size_t not_kept;    /* pictures that are decoded whenever they are used */
    size_t pixel_bytes; /* memory that the kept pictures take */
} ex_captions;

/*
 * Reads DIR/captions.json and its pictures. About one in seven pairs is for validation, whole titles at a
 * time (what stands in brackets set aside, and capitals), so that none of its captions is trained. The split
 * is a function of titles and file names alone.
 * @param out  new reference: free with ex_captions_free
 * @return EX_OK; EX_EINPUT, with the file or the entry in error; EX_ENOMEM
 */
ex_status ex_captions_read(const char *folder, const ex_captions_options *options,
                           ex_captions **out, ex_error *error);

/*
 * The same for --data, or where that is not given for what comes with the programs. Pictures that cannot be
 * used are skipped with a warning.
 * @return MT_OK; MT_EINVAL (names the flag and the file), MT_ENOMEM
 */
MT_NODISCARD mt_status ex_captions_open(const ex_flags *flags, const char *argv0, int keywords,
                                        int clip_tokens, ex_captions **out);

/* NULL is a no-op. */
void ex_captions_free(ex_captions *captions);

/* The caption of a pair, as it is for validation, into text. */
void ex_captions_text(const ex_pair *pair, char *text, size_t capacity);

/*
 * Pictures [3, side, side], normalised, and tokens [EX_CAPTION_CONTEXT], or CLIP's [EX_CLIP_CONTEXT]. Training pairs come in another
 * order each epoch, their pictures scaled, shifted and mirrored; what a multiple of the batch has no room
 * for is left out of that epoch.
 * @param captions  borrowed as long as the source is used
 */
ex_source ex_captions_source(const ex_captions *captions);

#endif
