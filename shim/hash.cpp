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

#include <ATen/ops/contiguous.h>
#include <c10/core/GradMode.h>

#include "guard.hpp"

namespace memtrain::shim {
namespace {

constexpr size_t digest_bytes = 32;

#ifdef __APPLE__
class Digest {
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
class Digest {
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

void add_tensor(Digest &digest, const Named &named) {
    at::Tensor tensor = named.tensor.detach().to(at::kCPU).contiguous();
    std::string head = named.name + '\0' + c10::toString(tensor.scalar_type()) + '\0';
    for (int64_t size : tensor.sizes()) head += std::to_string(size) + ',';
    head += '\0';
    digest.add(head.data(), head.size());
    if (tensor.nbytes()) digest.add(tensor.const_data_ptr(), tensor.nbytes());
}

} // namespace

void sort_by_name(std::vector<Named> &list) {
    std::stable_sort(list.begin(), list.end(),
                     [](const Named &a, const Named &b) { return a.name < b.name; });
}

void sha256(const std::vector<Named> &list, char out[65]) {
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[digest_bytes];
    c10::NoGradGuard no_grad;
    Digest digest;
    for (const Named &named : list) add_tensor(digest, named);
    digest.finish(bytes);
    for (size_t i = 0; i < digest_bytes; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * digest_bytes] = '\0';
}

} // namespace memtrain::shim
