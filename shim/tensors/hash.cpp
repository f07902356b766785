/*
 * hash.cpp - SHA-256 over named tensors, by OpenSSL, on macOS by CommonCrypto.
 *
 * The text that is hashed, so that others can compute it: for each tensor its name, a zero byte, the
 * dtype as libtorch spells it ("Float", "Long"), a zero byte, each size as decimal digits and a
 * comma, a zero byte, and the bytes.
 */
#include "hash.hpp"

#include <algorithm>

#ifdef __APPLE__
#include <CommonCrypto/CommonDigest.h>
#else
#include <openssl/evp.h>
#endif

#include <c10/core/GradMode.h>

#include "bytes.hpp"
#include "guard.hpp"

namespace memtrain::shim {

static constexpr size_t digest_bytes = 32;

#ifdef __APPLE__
class StateHash::Digest {
public:
    Digest() { CC_SHA256_Init(&context_); }
    void add(const void *data, size_t bytes) {
        constexpr size_t most = size_t{1} << 30; /* CC_LONG has 32 bits */
        const char *p = static_cast<const char *>(data);
        for (; bytes > most; bytes -= most, p += most) CC_SHA256_Update(&context_, p, most);
        CC_SHA256_Update(&context_, p, static_cast<CC_LONG>(bytes));
    }
    void finish(unsigned char *out) { CC_SHA256_Final(out, &context_); }

private:
    CC_SHA256_CTX context_;
};
#else
class StateHash::Digest {
public:
    Digest() : context_(EVP_MD_CTX_new()) {
        if (!context_ || !EVP_DigestInit_ex(context_, EVP_sha256(), nullptr)) {
            EVP_MD_CTX_free(context_);
            fail(MT_ENOTSUP, "libcrypto has no SHA-256");
        }
    }
    ~Digest() { EVP_MD_CTX_free(context_); }
    Digest(const Digest &) = delete;
    Digest &operator=(const Digest &) = delete;
    void add(const void *data, size_t bytes) {
        if (!EVP_DigestUpdate(context_, data, bytes)) fail(MT_ENOTSUP, "libcrypto failed");
    }
    void finish(unsigned char *out) {
        if (!EVP_DigestFinal_ex(context_, out, nullptr)) fail(MT_ENOTSUP, "libcrypto failed");
    }

private:
    EVP_MD_CTX *context_;
};
#endif

StateHash::StateHash() : digest_(std::make_unique<Digest>()) {}
StateHash::~StateHash() = default;

void StateHash::head(const std::string &name, c10::ScalarType type, at::IntArrayRef sizes) {
    std::string head = name + '\0' + c10::toString(type) + '\0';
    for (int64_t size : sizes) head += std::to_string(size) + ',';
    head += '\0';
    bytes(head.data(), head.size());
}

void StateHash::bytes(const void *data, size_t count) {
    if (count) digest_->add(data, count);
}

void StateHash::finish(char out[65]) {
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[digest_bytes];
    digest_->finish(bytes);
    for (size_t i = 0; i < digest_bytes; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * digest_bytes] = '\0';
}

void sort_by_name(std::vector<Named> &list) {
    std::stable_sort(list.begin(), list.end(),
                     [](const Named &a, const Named &b) { return a.name < b.name; });
}

void sha256(const std::vector<Named> &list, char out[65]) {
    c10::NoGradGuard no_grad;
    StateHash hash;
    Staging staging;
    for (const Named &named : list) {
        const at::Tensor &tensor = named.tensor;
        hash.head(named.name, tensor.scalar_type(), tensor.sizes());
        for (size_t offset = 0; offset < tensor.nbytes();) {
            Staging::Bytes piece = staging.get(tensor, offset);
            hash.bytes(piece.data, piece.count);
            offset += piece.count;
        }
    }
    hash.finish(out);
}

} // namespace memtrain::shim
